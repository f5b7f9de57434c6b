"""Programs: version, invalid flags, and its set-up."""

from __future__ import annotations

import shlex
from asyncio import sslproto
from collections.abc import Callable, Sequence
from resource import RLIMIT_NOFILE, getrlimit

import pytest

from controller_runtime.errors import ConfigError
from controller_runtime.process.program import Program, ProgramSettings, version
from hack.programs import DAEMON, programs

PROGRAMS = {name: program for name, program in programs().items() if name != DAEMON}
"""The programs without commands for people."""


class _Settings(ProgramSettings):
    def check(self) -> None:
        if self.log_level == "mauve":
            raise ConfigError("--colour: 'mauve' is no colour")


class _Three(Program[_Settings]):
    async def _run(self, settings: _Settings) -> int:
        return 3


THREE = _Three(name="x", about="", settings=_Settings, run="", rights="")


def test_exit_code_is_the_result_of_the_program(monkeypatch: pytest.MonkeyPatch):
    """It ran in a loop, with the maximum of open files and a shared TLS buffer."""
    monkeypatch.setattr(
        sslproto, "SSLProtocol", usual := sslproto.SSLProtocol
    )  # restored for the other tests
    assert THREE(["--log-format=json"]) == 3
    assert getrlimit(RLIMIT_NOFILE)[0] == getrlimit(RLIMIT_NOFILE)[1]
    assert issubclass(sslproto.SSLProtocol, usual)
    assert sslproto.SSLProtocol is not usual


def test_a_bad_value_is_one_line(capsys: pytest.CaptureFixture[str]):
    """It names the program and the flag; exit code 2, no traceback."""
    assert THREE(["--log-level=mauve"]) == 2
    assert capsys.readouterr().err == "x: --colour: 'mauve' is no colour\n"


@pytest.mark.parametrize("argument", ["version", "--version", "-version"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_prints_its_version(program: str, argument: str, capsys: pytest.CaptureFixture[str]):
    """All of one release."""
    assert PROGRAMS[program]([argument]) == 0
    assert capsys.readouterr().out == f"{version()}\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_mistyped_flag_gets_a_suggestion(program: str, capsys: pytest.CaptureFixture[str]):
    """In one line, without the usage of all flags before it."""
    with pytest.raises(SystemExit) as end:
        PROGRAMS[program](["--kubeconfg=x"])
    assert end.value.code == 2
    assert capsys.readouterr().err == (f"{program}: unknown flag --kubeconfg, did you mean --kubeconfig?\n")


def _examples(main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.partition("examples:")[2].splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("program", PROGRAMS)
def test_examples_in_the_help_are_valid(program: str, capsys: pytest.CaptureFixture[str]):
    """Their flags exist; only the files that they name do not."""
    examples = _examples(PROGRAMS[program], capsys)
    assert examples
    for example in examples:
        name, *arguments = shlex.split(example)
        assert name == program
        if arguments[0] in PROGRAMS[program].commands:
            continue
        try:
            code = PROGRAMS[program]([*arguments, "--log-level=nonsense"])
        except SystemExit as end:  # argparse does not know a flag
            pytest.fail(f"{example}: {end.code}")
        assert code == 2
        assert "unknown flag" not in capsys.readouterr().err
