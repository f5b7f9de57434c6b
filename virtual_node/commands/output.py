"""Tables for people and data for programs: rich on a terminal, plain text in a pipe, JSON and YAML on demand."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

FORMATS = ("table", "wide", "json", "yaml")
_GOOD, _BAD = (
    frozenset({"True", "Ready", "Running", "ok"}),
    frozenset({"False", "NotReady", "Unknown", "fail", "broken"}),
)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, stream: TextIO | None = None, empty: str = ""
) -> None:
    """Print a table the way kubectl does; with colour on a terminal only."""
    stream = stream or sys.stdout
    if not rows:
        print(empty, file=sys.stderr)  # noqa: T201 - the answer
        return
    if not stream.isatty():
        widths = [max(len(row[place]) for row in [columns, *rows]) for place in range(len(columns))]
        for row in [columns, *rows]:
            line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print(line.rstrip(), file=stream)
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(_coloured(cell) for cell in row))
    Console(file=stream).print(shown)


def data(value: Mapping[str, Any] | Sequence[Any], form: str, *, stream: TextIO | None = None) -> None:
    """Print data as ``json`` or ``yaml``."""
    text = json.dumps(value, indent=2) if form == "json" else yaml.safe_dump(value, sort_keys=False).rstrip()
    print(text, file=stream or sys.stdout)


def age(seconds: float) -> str:
    """A duration as kubectl shortens it: 45s, 12m, 3h, 5d."""
    for limit, unit, length in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{max(0, int(seconds // length))}{unit}"
    return f"{int(seconds // 86400)}d"


def _coloured(cell: str) -> Text:
    style = "green" if cell in _GOOD else "bold red" if cell in _BAD else ""
    return Text(cell, style=style)
