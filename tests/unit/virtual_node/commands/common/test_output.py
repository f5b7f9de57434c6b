"""Tables are readable: in pipes, on narrow terminals, without colours, with any content."""

from __future__ import annotations

import io
import re

import pytest

from virtual_node.commands.common import output

COLUMNS = ("NODE", "READY", "LAG", "AGE")
ROWS = [("vn-a", "True", "≤25ms", "3h"), ("vn-long-name", "False", "-", "12m")]


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """80 columns, in colour."""
    for name, value in {"COLUMNS": "80", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def _lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_a_pipe_gets_plain_lines():
    """Columns three blanks apart, no blanks at the end, no colours."""
    stream = io.StringIO()
    output.table(COLUMNS, ROWS, stream=stream)
    assert _lines(stream) == [
        "NODE           READY   LAG     AGE",
        "vn-a           True    ≤25ms   3h",
        "vn-long-name   False   -       12m",
    ]


def test_a_pipe_gets_complete_lines(monkeypatch: pytest.MonkeyPatch):
    """Independent of the width of the terminal."""
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    output.table(("A", "B"), [("x" * 200, "y")], stream=stream, spare=("B",))
    assert _lines(stream)[1] == "x" * 200 + "   y"


@pytest.mark.parametrize("width", ["0", "1"])
def test_a_terminal_without_a_width_shows_everything(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, width: str
):
    """Serial consoles and job runners report such widths."""
    monkeypatch.setenv("COLUMNS", width)
    output.table(COLUMNS, ROWS, stream=terminal, spare=("LAG", "AGE"))
    output.listing([output.Entry(output.GOOD, "title", ["detail"], ["step"])], stream=terminal)
    shown = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).split())
    assert shown.startswith("NODE READY LAG AGE vn-a True ≤25ms 3h")
    assert shown.endswith("✓ title detail → step")


def test_a_terminal_shows_the_state_in_colour(terminal: Terminal):
    """Green or red, with the same columns as in a pipe."""
    output.table(COLUMNS, ROWS, stream=terminal)
    assert "\x1b[32mTrue" in terminal.getvalue()
    assert "\x1b[1;31mFalse" in terminal.getvalue()


def test_no_color_is_respected(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    """https://no-color.org"""
    monkeypatch.setenv("NO_COLOR", "1")
    output.table(COLUMNS, ROWS, stream=terminal)
    output.listing([output.Entry(output.BAD, "title", ["said"], ["do"])], stream=terminal)
    assert "\x1b[3" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("width", "shown"),
    [("80", COLUMNS), ("33", ("NODE", "READY", "AGE")), ("24", ("NODE", "READY")), ("10", ("NODE", "READY"))],
)
def test_a_narrow_terminal_omits_optional_columns(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, width: str, shown: tuple[str, ...]
):
    """The least important first; other columns stay, and no line is broken where it fits."""
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("NO_COLOR", "1")
    output.table(COLUMNS, ROWS, stream=terminal, spare=("LAG", "AGE"))
    assert terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").split("\n")[0].split() == list(
        shown
    )
    assert len(_lines(terminal)) == 3


def test_control_characters_and_markup_are_escaped():
    """Line breaks, escape sequences and markup in messages are only text."""
    stream = io.StringIO()
    output.table(("A", "B"), [("one\ntwo\t three", "\x1b[31mred[/] [bold]")], stream=stream)
    assert _lines(stream)[1] == "one two three   ?[31mred[/] [bold]"
    output.listing([output.Entry(output.GOOD, "a\x07b", ["[c]"], ["d\ne"])], stream=stream)
    assert _lines(stream)[2:] == ["✓ a?b", "    [c]", "    → d e"]


def test_a_report_is_a_table_or_a_listing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    """If the table does not fit, long texts are wrapped under their title. In a pipe, the next steps follow the table."""
    said = "word " * 30
    arguments = (("TITLE", "SAID", "NEXT"), [output.Line(output.BAD, "title", ("title", said, "next"))])
    monkeypatch.setenv("TERM", "dumb")  # no escape sequences at all
    output.report(*arguments, stream=terminal)
    lines = [line.rstrip() for line in _lines(terminal)]
    assert lines[0] == "✗ title"
    assert [line.startswith("    word") for line in lines[1:-1]] == [True, True]
    assert lines[-1] == "    → next"
    for name, value in {"COLUMNS": "200", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    wide = Terminal()
    output.report(*arguments, stream=wide)
    assert len(_lines(wide)) == 2
    pipe = io.StringIO()
    monkeypatch.setenv("COLUMNS", "60")
    output.report(*arguments, stream=pipe)
    assert [line.rstrip() for line in _lines(pipe)] == [
        "TITLE   SAID",
        f"title   {said}".rstrip(),
        "→ title: next",
    ]


def test_headings_can_be_left_out():
    """The columns stay where they are."""
    stream = io.StringIO()
    output.table(COLUMNS, ROWS, stream=stream, headers=False)
    assert _lines(stream)[0] == "vn-a           True    ≤25ms   3h"


def test_later_rows_align_with_earlier_ones():
    """In a watch; a value longer than its column moves only its own line."""
    stream = io.StringIO()
    output.table(COLUMNS, [ROWS[0]], stream=stream, headers=False, above=ROWS)
    output.table(
        COLUMNS, [("vn-a-much-longer-name", "True", "-", "1s")], stream=stream, headers=False, above=ROWS
    )
    assert _lines(stream) == [
        "vn-a           True    ≤25ms   3h",
        "vn-a-much-longer-name   True    -       1s",
    ]
