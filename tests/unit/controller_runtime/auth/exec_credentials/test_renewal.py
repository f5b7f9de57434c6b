"""When the plugin is run, and when it is not."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from controller_runtime.auth import exec_credentials
from controller_runtime.errors import ConfigError
from tests.unit.controller_runtime.auth.exec_credentials.plugin import Clock, Make, Program, bearer


async def test_runs_once_for_all_callers(make: Make, program: Program) -> None:
    """A hundred requests at start run the plugin once, and later ones not at all."""
    credentials = make()
    found = await asyncio.gather(*(credentials.headers() for _ in range(100)))
    assert found == [bearer("one")] * 100
    assert await credentials.headers() == bearer("one")
    assert len(program.runs) == 1


async def test_without_expiry_it_is_good_until_refused(make: Make, program: Program, clock: Clock) -> None:
    """A credential without expirationTimestamp lives for ever, but for a 401."""
    credentials = make()
    await credentials.headers()
    clock.moment += timedelta(days=1000)
    program.answer(token="two")
    assert await credentials.headers() == bearer("one")
    assert await credentials.headers(refresh=True) == bearer("two")
    assert await credentials.headers() == bearer("two")


@pytest.mark.parametrize(("life", "early"), [(3600, 60), (100, 20)])
async def test_renewed_before_expiry(
    make: Make, program: Program, clock: Clock, life: int, early: int
) -> None:
    """A minute before it expires, or a fifth of a short life, the plugin runs again."""
    program.answer(token="one", expirationTimestamp=clock.after(life))
    credentials = make()
    await credentials.headers()
    program.answer(token="two", expirationTimestamp=clock.after(10 * life))
    clock.moment += timedelta(seconds=life - early - 1)
    assert await credentials.headers() == bearer("one")
    clock.moment += timedelta(seconds=1)
    assert await credentials.headers() == bearer("two")


async def test_early_renewal_may_fail(make: Make, program: Program, clock: Clock) -> None:
    """What is still good is used while the plugin fails, without running it for every request; then it is told."""
    program.answer(token="one", expirationTimestamp=clock.after(3600))
    credentials = make()
    await credentials.headers()
    program.write(
        "import pathlib, sys\n(pathlib.Path(__file__).parent / 'tried').open('a').write('x')\nsys.exit(1)"
    )
    clock.moment += timedelta(seconds=3590)
    for _ in range(5):
        assert await credentials.headers() == bearer("one")
    assert (program.directory / "tried").read_text() == "x"
    clock.moment += timedelta(seconds=10)
    credentials._ran_at = float("-inf")  # a second goes by
    with pytest.raises(ConfigError, match="exit code 1"):
        await credentials.headers()


async def test_refused_again_and_again_does_not_hammer_the_plugin(make: Make, program: Program) -> None:
    """A plugin that hands out what the server refuses runs once per few seconds, not once per request."""
    credentials = make()
    await credentials.headers()
    for _ in range(20):
        await credentials.headers(refresh=True)
    assert len(program.runs) == 2


async def test_expired_again_and_again_does_not_hammer_the_plugin(
    make: Make, program: Program, clock: Clock
) -> None:
    """A clock that is wrong makes each credential look expired; it is used, and the plugin is spared."""
    program.answer(token="one", expirationTimestamp=clock.after(-10))
    credentials = make()
    for _ in range(20):
        assert await credentials.headers() == bearer("one")
    assert len(program.runs) < 5


async def test_cancelled_caller_does_not_spoil_it_for_others(make: Make, program: Program) -> None:
    """The run goes on when the caller that began it goes away."""
    credentials = make()
    first, second = (asyncio.create_task(credentials.headers()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == bearer("one")
    assert first.cancelled()
    assert len(program.runs) == 1


async def test_close_ends_a_plugin_that_hangs(make: Make, program: Program) -> None:
    """A plugin that never answers is killed with its owner."""
    announced = program.directory / "pid"
    os.mkfifo(announced)
    program.write(
        "import os, pathlib, time\n"
        "(pathlib.Path(__file__).parent / 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    credentials = make()
    waiting = asyncio.create_task(credentials.headers())
    pid = await asyncio.to_thread(announced.read_text)
    await credentials.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not Path(f"/proc/{pid}").exists()
    await credentials.close()


async def test_what_a_plugin_has_started_ends_with_it(make: Make, program: Program) -> None:
    """A wrapper around the program that hangs, say: it would hold the next renewal up for as long as it likes."""
    said = program.directory / "said"
    os.mkfifo(said)
    program.write(
        "import pathlib, subprocess\n"
        "with (pathlib.Path(__file__).parent / 'said').open('w') as said:\n"
        "    subprocess.run(['sh', '-c', 'echo begun; sleep 30; echo ended'], stdout=said)\n"
    )
    credentials = make()
    waiting = asyncio.create_task(credentials.headers())
    with await asyncio.to_thread(said.open) as hearing:
        assert await asyncio.to_thread(hearing.readline) == "begun\n"
        await credentials.close()
        assert await asyncio.to_thread(hearing.read) == ""
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_plugin_that_hangs_is_given_up(
    make: Make, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that never answers is an error after a while."""
    monkeypatch.setattr(exec_credentials, "_RUN_TIMEOUT", 0.3)
    program.write("import time\ntime.sleep(1000)\n")
    with pytest.raises(ConfigError, match=r"no answer in 0\.3 s"):
        await make().headers()
