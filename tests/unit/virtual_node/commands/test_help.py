"""The help of the command line is correct: examples work, suggestions are useful, errors are short."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from controller_runtime.process.program import version
from controller_runtime.process.terminal import Parser
from virtual_node import cli
from virtual_node.config import program

COMMANDS = [command for command in cli.COMMANDS if command not in {"providers", "help"}]


def _parser(command: str) -> Parser:
    parser = cli.parser(command)
    assert isinstance(parser, Parser)
    return parser


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_is_a_valid_command_line(command: str):
    """Each begins with the command's name, with existing flags and values."""
    parser = _parser(command)
    assert parser.examples
    for what, line in parser.examples:
        assert what
        words = shlex.split(line)
        if command != "run":
            assert words.pop(0) == command
        _, rest = parser.parse_known_args(words)
        # cleanup passes unknown flags to the daemon's parser.
        if command == "cleanup":
            _parser("run").parse_args(rest)
        else:
            assert rest == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_uses_the_name_that_was_typed(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As a plugin of kubectl, too; no line is too long for most terminals, and none is reStructuredText."""
    monkeypatch.setattr(sys, "argv", [f"/x/{program.PLUGIN_FILE}"])
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert "examples:\n  # " in out
    assert f"\n  kubectl virtual-node {command}" in out
    assert "``" not in out


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("status", "virtual-node status [NODE ...] [FLAGS]"),
        ("diagnose", "virtual-node diagnose TYPE[/NAME] [[NAMESPACE/]NAME] [FLAGS]"),
        ("completion", "virtual-node completion bash|zsh|fish [FLAGS]"),
        ("check", "virtual-node check [FLAGS]"),
    ],
)
def test_usage_is_one_line(command: str, usage: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: {usage}\n\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["status", "--contxt=x"],
            "virtual-node status: unknown flag --contxt, did you mean --context?",
        ),
        (["check", "--client-kubeconf=x"], "did you mean --client-kubeconfig?"),
        (["--nodname=x"], "virtual-node: unknown flag --nodname, did you mean --nodename?"),
        (["inspect", "--fail-one=error"], "did you mean --fail-on?"),
        (["status", "--zzz"], "unknown flag --zzz; see 'virtual-node status --help'\n"),
        (
            ["status", "-o", "xml"],
            "-o/--output: 'xml' is not one of table, wide, json, yaml, name; see 'virtual-node status --help'",
        ),
        (["status", "--request-timeout", "soon"], "'soon' is not a duration such as 10s or 1m30s"),
        (["status", "--kube", "x"], "did you mean --kubeconfig?"),  # a flag cannot be shortened
    ],
)
def test_suggests_the_nearest_flag_or_choice_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    """With the problem, and the suggestion or the help command; not the usage of forty flags."""
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert told in err
    name = f"virtual-node {words[0]}" if not words[0].startswith("-") else "virtual-node"
    assert err.startswith(f"{name}: ")
    assert err.endswith(("?\n", f"; see '{name} --help'\n"))
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("typed", "meant"), [("statsu", "status"), ("doktor", "doctor"), ("lower-clusters", "lower-cluster")]
)
def test_an_unknown_command_gets_a_suggestion(typed: str, meant: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main([typed]) == 2
    err = capsys.readouterr().err
    assert err == f"virtual-node: unknown command {typed!r}, did you mean {meant}?\n"


def test_the_program_alone_shows_the_required_flag_and_the_commands(capsys: pytest.CaptureFixture[str]):
    """The daemon's first flag, for manifests that lack it; the list of commands, for users."""
    assert cli.main([]) == 2
    assert capsys.readouterr().err == (
        "virtual-node: --client-kubeconfig: required: the kubeconfig of the lower cluster (or --config for many)"
        "; see 'virtual-node help' for the commands\n"
    )


def test_help_of_a_command_has_two_forms(capsys: pytest.CaptureFixture[str]):
    """``help status`` and ``status --help`` are the same."""
    with pytest.raises(SystemExit):
        cli.main(["help", "status"])
    assert capsys.readouterr().out.startswith("usage: virtual-node status ")
    assert cli.main(["help", "statsu"]) == 2
    assert "did you mean status?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "--namespace=a/b"],
        ["diagnose", "pod/x", "-n", "a b"],
        ["diagnose", "pod/x", "-n", ""],
        ["lower-cluster", "manifest", "--name=Tokyo!"],
        ["lower-cluster", "manifest", "--name=x", "--account-namespace=.."],
    ],
)
def test_an_invalid_name_is_an_error_before_any_request(words: list[str], capsys: pytest.CaptureFixture[str]):
    """With the flag."""
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert "is not a name: lower-case letters, digits and dashes" in capsys.readouterr().err


def test_the_version_is_a_line_or_data(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"{version()}\n"
    assert cli.main(["version", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], set(found)) == (version(), {"version", "python", "platform"})
