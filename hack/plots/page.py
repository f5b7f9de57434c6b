"""Generated parts of a Markdown page."""

from __future__ import annotations


def put(page: str, name: str, table: str) -> str:
    """Return the page with one table replaced; unchanged if the page has no such table."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    if not found:
        return page
    return before + begin + table + end + rest.partition(end)[2]
