"""The page docs/reference/works-with.md: one row for each software, replaced by the newest run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "works-with.md"
_HEAD = """# Works with

Software that others wrote, on real clusters: each program is installed from its published manifests, and does its usual job in
an upper cluster with pods on a virtual node. The same job then runs directly in the lower cluster, and the table shows where
what it observes differs. `python -m tests.company` runs all and writes this page; `python -m tests.company kueue` runs one
and replaces its row.

"""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    software: str
    version: str
    job: str
    result: str
    difference: str
    date: str


_MISSING = "missing"
_TITLES = ("software", "version", "what ran", "result", "difference from a direct run", "date")
assert len(_TITLES) == len(fields(Row))


def difference(direct: Mapping[str, Any], virtual: Mapping[str, Any]) -> str:
    """Return the observations that differ, with both values, or ``none``."""
    names = [*direct, *(name for name in virtual if name not in direct)]
    texts = [
        f"{name}: {_change(direct.get(name, _MISSING), virtual.get(name, _MISSING))}"
        for name in names
        if direct.get(name, _MISSING) != virtual.get(name, _MISSING)
    ]
    return "; ".join(texts) or "none"


def _change(direct: Any, virtual: Any) -> str:
    if isinstance(direct, list) and isinstance(virtual, list):
        missing, more = (
            [one for one in a if one not in b] for a, b in ((direct, virtual), (virtual, direct))
        )
        parts = [f"{word} {_shown(some)}" for word, some in (("without", missing), ("with", more)) if some]
        if parts:
            return ", ".join(parts)
    return f"{_shown(direct)} directly, {_shown(virtual)} on the virtual node"


def merged(page: str, rows: Iterable[Row]) -> str:
    """Return the page with these rows; rows of other software stay as they are."""
    every = {row.software: row for row in _rows(page)} | {row.software: row for row in rows}
    lines = [_line(_TITLES), _line(["---"] * len(_TITLES))]
    lines += [_line(astuple(every[name])) for name in sorted(every)]
    return _HEAD + "\n".join([*lines, ""])


def _rows(page: str) -> list[Row]:
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    cells = [
        [cell.strip().replace("\\|", "|") for cell in line.strip("| ").split(" | ")] for line in lines[1:]
    ]
    return [Row(*row) for row in cells if not row[0].startswith("---")]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)
