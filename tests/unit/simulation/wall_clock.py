"""Gives ``datetime.now`` the virtual time, so that a story has the same timestamps in every run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, tzinfo
from unittest import mock

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Wall-clock time at loop time 0."""
_PACKAGES = ("virtual_node.", "controller_runtime.")
skew: ContextVar[float] = ContextVar("skew", default=0.0)
"""Seconds by which the current process' wall clock is ahead. Tasks inherit it from the task that starts them."""


class _VirtualDatetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Return the virtual time of the running event loop, plus the process' skew."""
        seconds = asyncio.get_running_loop().time() + skew.get()
        return (_EPOCH + timedelta(seconds=seconds)).astimezone(tz)


@contextlib.contextmanager
def virtual_wall_clock() -> Iterator[None]:
    """Replace ``datetime`` in every loaded module of the product for the duration of the context."""
    with contextlib.ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith(_PACKAGES) and getattr(module, "datetime", None) is datetime:
                stack.enter_context(mock.patch.object(module, "datetime", _VirtualDatetime))
        yield
