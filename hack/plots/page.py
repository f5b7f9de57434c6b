"""Generated parts of a Markdown page."""

from __future__ import annotations


def put(page: str, name: str, table: str) -> str:
    """Return the page with one table replaced; unchanged if the page has no such table.

    Raises:
        ValueError: the table has no end.
    """
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    if not found:
        return page
    _, ended, after = rest.partition(end)
    if not ended:
        raise ValueError(f"{begin.strip()}: no line {end.strip()} after it")
    return before + begin + table + end + after
