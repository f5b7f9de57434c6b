"""Candidates of TAB, and the scripts of shells."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Sequence

import pytest

from controller_runtime.process.flags import add_boolean
from virtual_node import cli
from virtual_node.commands.completion.command import SCRIPTS, Completion, ParserOf, complete

SHELLS = tuple(SCRIPTS)


def _parser(_command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="x")
    parser.add_argument("kind", choices=("pod", "node"))
    parser.add_argument("name")
    parser.add_argument("-o", "--output", choices=("table", "json"), help="how 100%% of it is printed")
    parser.add_argument("-f", "--filename", metavar="FILE", action="append")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    add_boolean(parser, "--elect", default=False, help_text="elect")
    return parser


def _nested(_command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="x")
    below = parser.add_subparsers()
    below.add_parser("pods").add_argument("--all", action="store_true")
    below.add_parser("nodes")
    return parser


def _ask(*words: str, parser_of: ParserOf = _parser, default: str = "") -> Completion:
    commands = {"show": "shows", "shout": "shouts"}
    return complete(words, commands=commands, parser_of=parser_of, default=default)


def _values(found: Completion) -> list[str]:
    return [one.value for one in found.candidates]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sho"], ["show", "shout"]),
        (["show"], ["show"]),
        (["x"], []),
        (["show", ""], ["pod", "node"]),
        (["show", "p"], ["pod"]),
        (["show", "pod", ""], []),
        (["show", "pod", "name", ""], []),
        (["show", "--out"], ["--output"]),
        (["show", "--output", ""], ["table", "json"]),
        (["show", "-o", "j"], ["json"]),
        (["show", "--output=t"], ["table"]),
        (["show", "--output=json", ""], ["pod", "node"]),
        (["show", "--output", "json", "n"], ["node"]),
        (["show", "--quiet", ""], ["pod", "node"]),
        (["show", "--elect", ""], ["pod", "node"]),
        (["show", "--elect="], ["true", "false"]),
        (["show", "--unknown", ""], ["pod", "node"]),
        (["show", "--unknown="], []),
        (["show", "--", "--out"], []),
        (["show", "--output", "json", "--out"], []),
        (["show", "-f", "x", "--file"], ["--filename"]),
        (["show", "--secret"], []),
        (["unknown", ""], []),
        (["--out"], []),
    ],
)
def test_candidates_are_read_from_the_parser(words: Sequence[str], expected: Sequence[str]):
    """Commands, choices, flags and their values; no duplicates, nothing hidden, nothing after ``--``."""
    assert _values(_ask(*words)) == list(expected)


def test_no_word_is_an_empty_word():
    """All commands."""
    assert _values(_ask()) == ["show", "shout"]


def test_files_are_left_to_the_shell():
    """For flags with files as values, in both spellings."""
    assert _ask("show", "-f", "").files
    assert _ask("show", "--filename=").files
    assert not _ask("show", "pod", "").files


def test_flags_without_a_command_are_those_of_the_daemon():
    """It is the default command."""
    assert _values(_ask("--qui", default="show")) == ["--quiet"]
    assert _values(_ask("--output", "", default="show")) == ["table", "json"]


def test_subcommands_are_followed():
    """A command with subparsers is completed down to their flags."""
    assert _values(_ask("show", "", parser_of=_nested)) == ["pods", "nodes"]
    assert _values(_ask("show", "pods", "--a", parser_of=_nested)) == ["--all"]


def test_a_description_is_one_line_of_help():
    """As argparse prints it, with percent signs."""
    (found,) = _ask("show", "--outp").candidates
    assert found.description == "how 100% of it is printed"


@pytest.mark.parametrize("command", [*cli.COMMANDS])
def test_every_command_has_its_flags_completed(command: str, capsys: pytest.CaptureFixture[str]):
    """Without running; every command with flags offers its help."""
    parser = cli.parser(command)
    assert capsys.readouterr() == ("", "")
    assert (parser is None) == (command in {"providers", "help"})
    assert cli.main(["__complete", command, "--hel"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == ":4"
    assert parser is None or out[0].startswith("--help\t")


def test_the_output_has_cobras_format(capsys: pytest.CaptureFixture[str]):
    """Candidates with descriptions after tabs, and a directive last, as kubectl reads it."""
    cli.main(["__complete", "status", "-o", "j"])
    assert capsys.readouterr().out == "json\n:4\n"
    cli.main(["__complete", "status", "--kubeconfig", ""])
    assert capsys.readouterr().out == ":0\n"
    cli.main(["__complete", "stat"])
    assert capsys.readouterr().out == f"status\t{cli.COMMANDS['status'].purpose}\n:4\n"


def test_an_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    """It lists the known ones."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_valid_in_its_shell(shell: str):
    """If the shell is installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    flag = "--no-execute" if shell == "fish" else "-n"
    done = subprocess.run([shell, flag], input=SCRIPTS[shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
