"""No text of a cluster controls the administrator's terminal."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import virtual_node
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.process import terminal
from controller_runtime.process.terminal import complain
from hack.size import PRODUCT
from virtual_node.commands.cleanup.command import print_change
from virtual_node.commands.common import output
from virtual_node.commands.lower_cluster.applied import say

_ROOT = Path(virtual_node.__file__).parent.parent
_PRINTING = {
    "controller_runtime/process/terminal.py",
    "virtual_node/commands/common/output.py",
    "swarm/worker/sidecar.py",  # runs in a tenant's pod, and prints its own errors
}
_HOSTILE = "web\x1b[2J\x1b]0;title\x07\x9b31m\r\u202egnp\x00\x7f\u2028[red]x[/red] [link=https://x]y[/link]"


_CANDIDATE = re.compile(r"print|std(?:out|err)|rich|curses")
"""Part of each text with such a call or import; parsing all files takes seconds."""


def _printing_calls(text: str) -> list[int]:
    """Return the lines of calls that write to the terminal."""
    found: list[int] = []
    if not _CANDIDATE.search(text):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "print" or (called.endswith(".write") and called.startswith("sys.std")):
                found.append(node.lineno)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            )
            found += [node.lineno for module in modules if module.partition(".")[0] in {"rich", "curses"}]
    return found


def test_programs_print_only_through_functions_that_clean():
    printing = {}
    for program in PRODUCT:
        for file in sorted((_ROOT / program).rglob("*.py")):
            if lines := _printing_calls(file.read_text(encoding="utf-8")):
                printing[file.relative_to(_ROOT).as_posix()] = lines
    assert printing.keys() == _PRINTING


@pytest.mark.parametrize(
    "text",
    ["print(1)", "import sys; sys.stdout.write('')", "from rich.console import Console", "import rich"],
)
def test_a_call_that_prints_is_recognized(text: str):
    assert _printing_calls(text)


@pytest.mark.parametrize(
    "show",
    [
        print_change,
        lambda text: say("rights", text),
        output.note,
        output.conclusion,
        terminal.line,
        lambda text: complain("virtual-node", ConfigError(text)),
        lambda text: complain("virtual-node", ApiError(text, code=500, reason=text)),
        lambda text: output.table(("NAME", "WHY"), [(text, text)]),
        lambda text: output.table(("NAME",), [], empty=text),
        lambda text: output.report(("NAME", "NEXT"), [output.Line(output.BAD, text, (text, text))]),
        lambda text: output.listing([output.Entry(output.BAD, text, [text], [text])]),
        lambda text: output.data({"name": text, text: [text]}, "json"),
        lambda text: output.data({"name": text, text: [text]}, "yaml"),
    ],
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_are_not_printed(
    *,
    show: Callable[[str], object],
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """Also not the markup of rich, which could hide text or add a link."""
    if is_terminal:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
    show(_HOSTILE)
    shown = "".join(capsys.readouterr())
    assert "web" in shown
    assert not [character for character in shown if not character.isprintable() and character != "\n"]
    assert "[red]x[/red]" in shown
    assert "[link=https://x]y[/link]" in shown


def test_a_block_keeps_its_lines_and_columns(capsys: pytest.CaptureFixture[str]):
    terminal.block("a:\n  b: 1\t# c\x1b[2J\r\n")
    assert capsys.readouterr().out == "a:\n  b: 1\t# c?[2J?\n\n"
