"""Work on large objects does not block the event loop."""

from __future__ import annotations

import threading

import pytest

from controller_runtime.util.event_loop import LARGE, run_apart


async def test_only_large_objects_use_the_thread():
    """A switch of threads takes longer than the work on a small object."""
    here = threading.get_ident()
    assert await run_apart(threading.get_ident, size=LARGE - 1) == here
    apart = {await run_apart(threading.get_ident, size=LARGE) for _ in range(3)}
    assert len(apart) == 1
    assert here not in apart


async def test_an_error_reaches_the_caller():
    def fail() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await run_apart(fail, size=LARGE)
