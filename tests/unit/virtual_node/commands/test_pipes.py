"""Output to a closed pipe, a full disk, or in a limited character set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.thorough import some
from virtual_node import cli

_COMMAND = (sys.executable, "-m", "virtual_node")


@pytest.mark.parametrize("unbuffered", some(["", "1"], 1))
def test_a_closed_pipe_gives_no_traceback(unbuffered):
    """``virtual-node help | head -1`` ends silently, as if by SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*_COMMAND, "help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
@pytest.mark.parametrize("words", some([["help"], ["version"], ["version", "-o=json"]], 1))
def test_a_full_disk_is_an_error_in_one_line(words: list[str]):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*_COMMAND, *words], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr == b"virtual-node: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("words", some(["version", "help"], 1))
def test_a_closed_output_is_no_error(words: str):
    """``virtual-node version >&-``: only the exit code counts."""
    script = f"exec {sys.executable} -m virtual_node {words} >&-"
    done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_characters_outside_of_the_locale_are_replaced():
    """A table with ``≤25ms`` is readable in any code page, and good lines differ from bad ones."""
    text = """
import sys
from controller_runtime.process import terminal
from virtual_node import cli
from virtual_node.commands.common import output

def command(*_):
    entries = [output.Entry(output.GOOD, "a"), output.Entry(output.BAD, "b", steps=["c"])]
    output.listing([*entries, output.Entry(output.DOUBTFUL, "≤25ms é")])
    terminal.line("→ d…", is_remark=True)
    return 0

cli._command = command
sys.exit(cli.main(["status"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
        timeout=60,
    )
    lines = [" ".join(line.split()) for line in done.stdout.decode("ascii").splitlines()]
    assert (done.returncode, lines) == (0, ["+ a", "x b", "-> c", "* <=25ms ?"])
    assert done.stderr == b"-> d...\n"


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch):
    """Also one that waits for an unreachable cluster."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_command", interrupted)
    assert cli.main(["status"]) == 130
    with pytest.raises(KeyboardInterrupt):
        cli.main(["run"])
