"""Prints tables for people and data for programs, as kubectl does, with colour on terminals that support it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from controller_runtime.apimachinery.readable import one_line, some
from controller_runtime.process import terminal
from controller_runtime.process.flags import add_switch

if TYPE_CHECKING:
    from rich.console import Console

DATA = ("json", "yaml")
GOOD, BAD, DOUBTFUL, NOTHING = "✓", "✗", "•", "-"
"""Marks of listing entries."""
_MARKS = {GOOD: "green", BAD: "bold red", DOUBTFUL: "yellow", NOTHING: "dim"}
_GAP = "   "
_NARROWEST, _USUAL = 10, 80
"""Columns of the narrowest terminal, and of one with fewer: consoles and job runners report 0, with which nothing is printed."""
_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Environment variables with which rich regards a pipe as a terminal."""
_STYLES = {
    **dict.fromkeys(("True", "Ready", "Running", "ok"), "green"),
    **dict.fromkeys(("False", "NotReady", "Unknown", "no", "fail", "broken", "error"), "bold red"),
    "warning": "yellow",
}
"""Styles of table cells, by their text."""


def add_flags(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Declare ``-o`` with these formats, of which the first is the default; with tables also ``--no-headers``."""
    about = f"{', '.join(formats[:-1])} or {formats[-1]}"
    parser.add_argument("-o", "--output", default=formats[0], choices=formats, help=about)
    if "table" in formats:
        add_switch(parser, "--no-headers", "omit the headings")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Declare ``-q``."""
    add_switch(parser, "-q --quiet", "print only what is not ok, a line each, and the conclusion")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a listing; ``mark`` is GOOD, BAD, DOUBTFUL or NOTHING."""

    mark: str
    title: str
    details: Sequence[str] = ()
    """Facts about the entry's subject, one per line."""
    steps: Sequence[str] = ()
    """What to do next; empty texts are omitted."""


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    stream: TextIO | None = None,
    empty: str = "",
    headers: bool = True,
    spare: Collection[str] = (),
    above: Sequence[Sequence[str]] = (),
) -> None:
    """Print a table like kubectl; lines are never broken, because broken lines make a table unreadable.

    Args:
        columns: the headings.
        rows: a text for each column.
        stream: output stream; standard output by default.
        empty: printed to standard error when there are no rows.
        headers: whether to print the headings.
        spare: headings of columns to omit on a narrow terminal, the least important first.
        above: rows of the same table that are already printed; the columns get the widths of these rows.
    """
    stream = stream or sys.stdout
    if not rows:
        terminal.line(empty, is_remark=True)
        return
    lines = [[one_line(cell) for cell in row] for row in rows]
    places = list(range(len(columns)))
    shown, measured = places, [[one_line(cell) for cell in row] for row in above] or lines
    if stream.isatty():
        for name in spare:
            if _width(columns, measured, shown) <= _console(stream).width:
                break
            shown = [place for place in shown if columns[place] != name]
    widths = [max(_cells(line[place]) for line in [columns, *measured]) for place in places]
    for number, line in enumerate([columns, *lines] if headers else lines):
        parts = [
            (
                line[place],
                _STYLES.get(line[place], ""),
                " " * max(0, widths[place] - _cells(line[place])) + _GAP,
            )
            for place in shown
        ]
        _print_parts(parts, stream, style="bold" if headers and number == 0 else "")


def listing(entries: Sequence[Entry], *, stream: TextIO | None = None) -> None:
    """Print entries below each other, wrapped to the terminal's width; a pipe gets unbroken lines."""
    from rich.table import Table  # noqa: PLC0415 - see _console
    from rich.text import Text  # noqa: PLC0415

    stream = stream or sys.stdout
    console = _console(stream, soft_wrap=not stream.isatty())
    for entry in entries:
        lines = [(entry.mark, _MARKS.get(entry.mark, ""), entry.title, "bold")]
        lines += [("   ", "", text, "") for text in entry.details]
        lines += [("    →", "cyan", step, "cyan") for step in entry.steps if step]
        for mark, colour, text, style in lines:
            if stream.isatty():
                # Continuation lines are aligned with the start of their text.
                grid = Table.grid(padding=(0, 1, 0, 0))
                grid.add_row(Text(mark, style=colour), Text(one_line(text), style=style))
                console.print(grid)
            else:
                console.print(Text(f"{mark} {one_line(text)}"))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a report."""

    mark: str
    """Mark of the entry in a listing; empty: the line is only in the table."""
    title: str
    """Title of the entry, and of what the next step concerns."""
    cells: Sequence[str]
    """A text for each column of the table; the last two are the detail and the next step."""


def report(
    columns: Sequence[str], lines: Sequence[Line], *, stream: TextIO | None = None, headers: bool = True
) -> None:
    """Print a table, or a listing of the same content if the terminal is too narrow for the table.

    In a pipe, the next steps follow the table with the titles of their lines. Otherwise a paragraph about one row would make
    all lines as long.
    """
    stream = stream or sys.stdout
    rows = [[one_line(cell) for cell in line.cells] for line in lines]
    if not stream.isatty():
        table(columns[:-1], [row[:-1] for row in rows], stream=stream, headers=headers)
        titles: dict[str, list[str]] = {}
        for line in lines:
            titles.setdefault(line.cells[-1], []).append(line.title)
        for step, concerned in titles.items():
            if step:
                _print_parts([(one_line(f"→ {some(concerned)}: {step}"), "", "")], stream, style="")
    elif _width(columns, rows, range(len(columns))) > _console(stream).width:
        entries = [
            Entry(line.mark, line.title, [line.cells[-2]], [line.cells[-1]]) for line in lines if line.mark
        ]
        listing(entries, stream=stream)
    else:
        table(columns, rows, stream=stream, headers=headers)


def brief(rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Print rows of subject, state, detail and next step for ``-q``: no columns, because Helm prints a log as one line."""
    for subject, state, detail, step in rows:
        terminal.line(one_line(f"{subject}: {state}: {detail}{f' -> {step}' if step else ''}"))


def conclusion(text: str) -> None:
    """Print the conclusion as one bold line."""
    _print_parts([(one_line(text), "", "")], sys.stdout, style="bold")


def data(value: Mapping[str, Any] | Sequence[Any], form: str) -> None:
    """Print data as ``json`` or ``yaml``."""
    if form == "json":
        text = json.dumps(value, indent=2)
    else:
        import yaml  # noqa: PLC0415 - only -o yaml needs it

        text = yaml.safe_dump(value, sort_keys=False).rstrip()
    terminal.block(text)


def note(text: str) -> None:
    """Print a remark to standard error; an empty text prints nothing."""
    if text:
        terminal.line(text, is_remark=True)


def age(seconds: float) -> str:
    """Return a duration in seconds shortened like kubectl's: 45s, 12m, 3h, 5d."""
    for limit, unit, length in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{max(0, int(seconds // length))}{unit}"
    return f"{int(seconds // 86400)}d"


def _width(columns: Sequence[str], lines: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    widths = [max(_cells(line[place]) for line in [columns, *lines]) for place in shown]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _print_parts(parts: Sequence[tuple[str, str, str]], stream: TextIO, *, style: str) -> None:
    """Print one line; each part is a text, its style and padding. ``style`` applies to the whole line."""
    if not (stream.isatty() or any(map(os.environ.get, _TERMINAL))):
        print("".join(text + padding for text, _, padding in parts).rstrip(), file=stream)
        return
    from rich.text import Text  # noqa: PLC0415 - see _console

    line = Text(style=style)
    for text, own, padding in parts:
        line.append(text, style=own).append(padding)
    line.rstrip()
    _console(stream).print(line)


def _console(stream: TextIO, *, soft_wrap: bool = True) -> Console:
    """Return a console for a stream. Importing rich takes 0.1 s of CPU time, so tables for pipes do not use it."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(file=stream, highlight=False, soft_wrap=soft_wrap)
    if console.width < _NARROWEST:
        console.width = _USUAL
    return console


def _cells(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - see _console

    return cell_len(text)
