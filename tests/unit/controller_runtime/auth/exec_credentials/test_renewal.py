"""When the plugin runs, and when it does not."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from controller_runtime.auth import credentials, kubeconfig
from controller_runtime.errors import ConfigError
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.auth.exec_credentials.conftest import V1, Clock, Make, Program, bearer


async def test_runs_once_for_all_callers(make: Make, program: Program) -> None:
    """A hundred concurrent requests at start run the plugin once, and later ones not at all."""
    credentials = make()
    found = await asyncio.gather(*(credentials.headers() for _ in range(100)))
    assert found == [bearer("one")] * 100
    assert await credentials.headers() == bearer("one")
    assert len(program.runs) == 1


async def test_credential_without_expiry_is_valid_until_refused(
    make: Make, program: Program, clock: Clock
) -> None:
    """A credential without expirationTimestamp is used until a 401."""
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
    """A valid credential is used while the plugin fails, without running it for every request; after its expiry the error is raised."""
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
    credentials._ran_at = float("-inf")  # a second later
    with pytest.raises(ConfigError, match="exit code 1"):
        await credentials.headers()


async def test_repeated_refusals_run_the_plugin_rarely(make: Make, program: Program) -> None:
    """A plugin with refused credentials runs once per few seconds, not once per request."""
    credentials = make()
    await credentials.headers()
    for _ in range(20):
        await credentials.headers(refresh=True)
    assert len(program.runs) == 2


async def test_repeatedly_expired_credentials_run_the_plugin_rarely(
    make: Make, program: Program, clock: Clock
) -> None:
    """With a wrong clock each credential looks expired; it is used nevertheless."""
    program.answer(token="one", expirationTimestamp=clock.after(-10))
    credentials = make()
    for _ in range(20):
        assert await credentials.headers() == bearer("one")
    assert len(program.runs) < 5


async def test_cancelled_caller_does_not_cancel_the_run_of_others(make: Make, program: Program) -> None:
    credentials = make()
    first, second = (asyncio.create_task(credentials.headers()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == bearer("one")
    assert first.cancelled()
    assert len(program.runs) == 1


def _hang(program: Program) -> Path:
    """Make the plugin hang; return a pipe that it writes its pid to."""
    announced = program.directory / "pid"
    os.mkfifo(announced)
    program.write(
        "import os, pathlib, time\n"
        "(pathlib.Path(__file__).parent / 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    return announced


async def test_close_kills_a_hanging_plugin(make: Make, program: Program) -> None:
    announced = _hang(program)
    credentials = make()
    waiting = asyncio.create_task(credentials.headers())
    pid = await asyncio.to_thread(announced.read_text)
    await credentials.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not Path(f"/proc/{pid}").exists()
    await credentials.close()


async def test_cancelled_load_of_a_kubeconfig_kills_its_plugin(program: Program) -> None:
    """Otherwise each change of a ClusterProfile would leave one more process, outside of the limit of plugins."""
    announced = _hang(program)
    user = {"exec": {"apiVersion": V1, "command": str(program.path)}}
    loading = asyncio.create_task(kubeconfig.load(write(program.directory / "config", whole(user=user))))
    pid = await asyncio.to_thread(announced.read_text)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert not Path(f"/proc/{pid}").exists()


async def test_children_of_a_plugin_end_with_it(make: Make, program: Program) -> None:
    """A hanging child of a wrapper script would otherwise block the next renewal."""
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


async def test_hanging_plugin_is_an_error(
    make: Make, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time limit."""
    monkeypatch.setattr(credentials, "_RUN_TIMEOUT", 0.3)
    program.write("import time\ntime.sleep(1000)\n")
    with pytest.raises(ConfigError, match=r"no answer in 0\.3 s"):
        await make().headers()
