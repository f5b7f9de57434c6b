"""``kubectl virtual-node``: the same program as a plugin of kubectl."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from controller_runtime.process.program import version
from virtual_node import cli
from virtual_node.config import program

ROOT = Path(__file__).parents[5]
FLAGGED = [command for command in cli.COMMANDS if command not in {"providers", "help"}]
"""Commands that take flags."""


def _scripts() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    scripts: dict[str, str] = project["scripts"]
    return scripts


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the program as kubectl runs its plugin."""
    monkeypatch.setattr(sys, "argv", [f"/usr/local/bin/{program.PLUGIN_FILE}"])


@pytest.mark.parametrize(
    ("argv0", "expected"),
    [
        ("/usr/bin/virtual-node", "virtual-node"),
        ("/x/virtual_node/__main__.py", "virtual-node"),
        ("/usr/bin/kubectl-virtual_node", "kubectl virtual-node"),
        ("kubectl-virtual_node.exe", "kubectl virtual-node"),
        ("/usr/bin/kubectl_complete-virtual_node", "kubectl virtual-node"),
    ],
)
def test_the_name_is_that_of_the_started_file(monkeypatch: pytest.MonkeyPatch, argv0: str, expected: str):
    monkeypatch.setattr(sys, "argv", [argv0])
    assert program.name() == expected
    assert program.name("status") == f"{expected} status"


def test_kubectl_finds_both_scripts():
    """They are declared under the names that kubectl expects, and lead to existing functions."""
    scripts = _scripts()
    assert scripts[program.PLUGIN_FILE] == scripts["virtual-node"]
    for file in (program.PLUGIN_FILE, program.COMPLETION_FILE):
        module, _, function = scripts[file].partition(":")
        assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_plugin_lists_its_commands(
    plugin: None, capsys: pytest.CaptureFixture[str], arguments: list[str]
):
    """Without a command there is a list, and no daemon."""
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: kubectl virtual-node COMMAND [FLAGS]"
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert listed == [*cli.COMMANDS]
    assert all(len(line) < 110 for line in lines)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]):
    """``virtual-node help`` is the same list under the program's own name."""
    assert cli.main(["help"]) == 0
    assert capsys.readouterr().out.startswith("usage: virtual-node COMMAND")


def test_the_plugin_starts_no_daemon_by_flags_alone(plugin: None, capsys: pytest.CaptureFixture[str]):
    """As a plugin, the daemon's command is required."""
    assert cli.main(["--client-kubeconfig=x"]) == 2
    assert "kubectl virtual-node run" in capsys.readouterr().err


def test_the_plugin_knows_its_version(plugin: None, capsys: pytest.CaptureFixture[str]):
    """As the program does."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version()


def test_errors_name_the_plugin(plugin: None, capsys: pytest.CaptureFixture[str]):
    """The user's command can be repeated."""
    assert cli.main(["statsu"]) == 2
    assert capsys.readouterr().err.startswith("kubectl virtual-node: unknown command 'statsu'")


@pytest.mark.parametrize("command", FLAGGED)
def test_usage_lines_name_the_plugin(plugin: None, capsys: pytest.CaptureFixture[str], command: str):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: kubectl virtual-node {command} ")


@pytest.mark.parametrize("command", [command for command in FLAGGED if command != "run"])
def test_usage_lines_name_the_program(capsys: pytest.CaptureFixture[str], command: str):
    """Without kubectl."""
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: virtual-node {command} ")


def test_completion_for_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The completion script accepts kubectl's words, offers no daemon flags without a command, and ends in a directive."""
    module, _, function = _scripts()[program.COMPLETION_FILE].partition(":")
    script = tmp_path / program.COMPLETION_FILE
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from {module} import {function}\nsys.exit({function}())\n",
        encoding="utf-8",
    )
    script.chmod(0o755)

    done = subprocess.run([script, "sta"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [f"status\t{cli.COMMANDS['status'].purpose}", ":4"]

    def ask(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [str(script), *words])
        assert not getattr(import_module(module), function)()
        return capsys.readouterr().out.splitlines()

    assert ask("status", "-o", "j") == ["json", ":4"]
    assert ask("--kube") == [":4"]
