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


async def told(ready: Path) -> None:
    """Wait until a program has said that it is ready."""
    await asyncio.to_thread(ready.read_text)


async def test_its_output_goes_to_a_log_and_its_pid_to_a_file(tmp_path, ready):
    """Another command finds it by the pid file, under a name with its folder; stopped, the file is gone."""
    process = sh(
        "sleeper", f"echo $A; echo err >&2; echo > {ready}; exec sleep 100", tmp_path / "lower1", env={"A": "b"}
    )  # fmt: skip
    await process.start()
    await told(ready)
    assert process.log.read_text() == "b\nerr\n"
    assert running(tmp_path) == {"lower1/sleeper": Identity(process.pid, start_time(process.pid))}
    await process.stop()
    assert running(tmp_path) == {}
    assert not process.running
    assert not process.pid_file.exists()


async def test_it_starts_again_after_a_kill(tmp_path, ready):
    """A killed program can be started again; the log goes on."""
    process = sh("program", f"echo up; echo > {ready}; exec sleep 100", tmp_path)
    await process.start()
    await told(ready)
    first = process.pid
    await process.kill()
    await process.start()
    await told(ready)
    assert process.log.read_text() == "up\nup\n"
    assert process.pid != first
    await process.stop()


async def test_what_ignores_sigterm_is_killed_with_its_children(tmp_path, ready):
    """After the seconds given, SIGKILL goes to the whole session."""
    process = sh("stubborn", f"trap '' TERM; sleep 100 & echo $!; echo > {ready}; wait", tmp_path)
    await process.start()
    await told(ready)
    child = int(process.log.read_text())
    await process.stop(seconds=0.1)
    assert start_time(child) == ""
    assert not process.running


async def test_a_recycled_pid_is_never_signalled(tmp_path):
    """Same pid, other start time: another process, which is left alone."""
    process = sh("innocent", "exec sleep 100", tmp_path)
    await process.start()
    stranger = Identity(process.pid, "1")
    assert not stranger.alive()
    assert not stranger.signal(signal.SIGKILL)
    await stop(stranger)
    assert process.running
    await process.stop()


def test_a_pid_that_is_not_there_has_no_start_time():
    """Neither a made-up pid nor a zombie counts as alive; we do."""
    assert start_time(2**22 + 1) == ""
    assert Identity(os.getpid(), start_time(os.getpid())).alive()


async def test_what_has_ended_tells_its_last_words(tmp_path):
    """The check quotes the end of the log and says where it is."""
    process = sh("failing", "echo starting; echo 'port is taken' >&2; exit 1", tmp_path)
    await process.start()
    await process._reap()
    with pytest.raises(SandboxError, match=r"failing has ended: port is taken \(log: .*failing\.log\)"):
        process.check()


async def test_a_program_that_is_not_there_is_one_line(tmp_path):
    """The error names the process, the path and the reason."""
    process = Process("ghost", [tmp_path / "ghost"], directory=tmp_path)
    with pytest.raises(SandboxError, match=r"ghost: cannot start .*ghost: No such file or directory"):
        await process.start()


@pytest.mark.parametrize("text", ["", "12", "12 34 56", "twelve 34"])
def test_what_is_no_pid_file_of_ours_is_passed_over(tmp_path, text):
    """Containerd's and half-written ones are not mistaken for ours."""
    (tmp_path / "x.pid").write_text(text)
    assert Identity.read(tmp_path / "x.pid") is None
    assert running(tmp_path) == {}


async def test_what_ended_before_we_could_ask_is_not_alive(tmp_path):
    """Without a start time there is nothing to compare, and no process to signal."""
    assert not Identity(2**22 + 1, "").alive()
    assert not Identity(2**22 + 1, "").signal(signal.SIGTERM)
