from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hack.sandbox.errors import SandboxError
from hack.sandbox.process import Identity, Process, start_time, stop
from hack.sandbox.stopping import running


def sh(name: str, text: str, directory: Path, **more: Any) -> Process:
    """A shell script as a supervised program."""
    return Process(name, ["sh", "-c", text], directory=directory, **more)


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A named pipe: programs write to it once they are set up, and ``told`` waits for that."""
    path = tmp_path / "ready"
    os.mkfifo(path)
    return path


async def wait_until_ready(ready: Path) -> None:
    """Wait until a program has reported that it is ready."""
    await asyncio.to_thread(ready.read_text)


async def test_output_goes_to_a_log_and_the_pid_to_a_file(tmp_path, ready):
    """Other commands find the process by its pid file, which is removed when it stops."""
    process = sh(
        "sleeper", f"echo $A; echo err >&2; echo > {ready}; exec sleep 100", tmp_path / "lower1", env={"A": "b"}
    )  # fmt: skip
    await process.start()
    await wait_until_ready(ready)
    assert process.log.read_text() == "b\nerr\n"
    assert running(tmp_path) == {"lower1/sleeper": Identity(process.pid, start_time(process.pid))}
    await process.stop()
    assert running(tmp_path) == {}
    assert not process.running
    assert not process.pid_file.exists()


async def test_a_killed_program_can_be_started_again(tmp_path, ready):
    """The log continues."""
    process = sh("program", f"echo up; echo > {ready}; exec sleep 100", tmp_path)
    await process.start()
    await wait_until_ready(ready)
    first = process.pid
    await process.kill()
    await process.start()
    await wait_until_ready(ready)
    assert process.log.read_text() == "up\nup\n"
    assert process.pid != first
    await process.stop()


async def test_a_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path, ready):
    """After the seconds given, SIGKILL goes to the whole session."""
    process = sh("stubborn", f"trap '' TERM; sleep 100 & echo $!; echo > {ready}; wait", tmp_path)
    await process.start()
    await wait_until_ready(ready)
    child = int(process.log.read_text())
    await process.stop(seconds=0.1)
    assert start_time(child) == ""
    assert not process.running


async def test_a_recycled_pid_is_never_signalled(tmp_path):
    """Same pid, other start time: another process."""
    process = sh("innocent", "exec sleep 100", tmp_path)
    await process.start()
    stranger = Identity(process.pid, "1")
    assert not stranger.alive()
    assert not stranger.signal(signal.SIGKILL)
    await stop(stranger)
    assert process.running
    await process.stop()


def test_a_missing_process_has_no_start_time():
    """Nor has a zombie; a running one has."""
    assert start_time(2**22 + 1) == ""
    assert Identity(os.getpid(), start_time(os.getpid())).alive()


async def test_the_error_of_an_ended_process_quotes_its_log(tmp_path):
    """And names the log."""
    process = sh("failing", "echo starting; echo 'port is taken' >&2; exit 1", tmp_path)
    await process.start()
    await process._reap()
    with pytest.raises(SandboxError, match=r"failing has ended: port is taken \(log: .*failing\.log\)"):
        process.check()


async def test_a_missing_program_is_one_line(tmp_path):
    """The error names the process, the path and the reason."""
    process = Process("ghost", [tmp_path / "ghost"], directory=tmp_path)
    with pytest.raises(SandboxError, match=r"ghost: cannot start .*ghost: No such file or directory"):
        await process.start()


@pytest.mark.parametrize("text", ["", "12", "12 34 56", "twelve 34"])
def test_other_pid_files_are_ignored(tmp_path, text):
    """Such as containerd's and incomplete ones."""
    (tmp_path / "x.pid").write_text(text)
    assert Identity.read(tmp_path / "x.pid") is None
    assert running(tmp_path) == {}


async def test_a_process_without_a_start_time_is_not_alive(tmp_path):
    """It had ended before it was read, so no signal is sent."""
    assert not Identity(2**22 + 1, "").alive()
    assert not Identity(2**22 + 1, "").signal(signal.SIGTERM)
