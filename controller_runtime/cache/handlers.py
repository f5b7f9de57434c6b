"""Calls an informer's handlers: functions directly, coroutine functions in one task per registration."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, Self

from controller_runtime.objects import Object

OnAdd = Callable[[Object, bool], Awaitable[None] | None]
OnUpdate = Callable[[Object, Object], Awaitable[None] | None]
OnDelete = Callable[[Object], Awaitable[None] | None]


class Source(Protocol):
    """The informer that handlers are attached to."""

    def detach(self, registration: Registration) -> None:
        """Stop deliveries to a registration."""

    def handler_failed(self) -> None:
        """Log and count the current exception, which a handler raised."""


class Registration:
    """One set of handlers; ``remove``, or the end of a ``with`` block, detaches it."""

    def __init__(
        self,
        source: Source,
        on_add: OnAdd | None,
        on_update: OnUpdate | None,
        on_delete: OnDelete | None,
    ) -> None:
        self._source = source
        self._handlers: dict[str, Callable[..., Any] | None] = {
            "add": on_add,
            "update": on_update,
            "delete": on_delete,
        }
        self._buffer: asyncio.Queue[tuple[Callable[..., Any], tuple[Any, ...]]] | None = None
        if any(inspect.iscoroutinefunction(handler) for handler in self._handlers.values()):
            self._buffer = asyncio.Queue()
        self._removed = False
        self.has_synced = False
        """Whether every object of the first list has been delivered."""

    def remove(self) -> None:
        """Stop deliveries, including buffered ones; a running call finishes."""
        self._removed = True
        self._source.detach(self)
        if self._buffer is not None:
            self._buffer.put_nowait((self._nothing, ()))  # wakes ``pump``, which returns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def deliver(self, kind: str, *arguments: Any) -> None:
        """Call a handler now, or buffer the call for coroutine handlers."""
        handler = self._handlers[kind]
        if handler is None or self._removed:
            return
        if self._buffer is not None:
            self._buffer.put_nowait((handler, arguments))
            return
        try:
            handler(*arguments)
        except Exception:  # noqa: BLE001 - must not stop other handlers
            self._source.handler_failed()

    def mark_synced(self) -> None:
        """Set ``has_synced`` after the deliveries so far."""
        if self._buffer is None:
            self.has_synced = True
        else:
            self._buffer.put_nowait((self._note_synced, ()))

    async def pump(self) -> None:
        """Call buffered handlers in order, so that a slow one delays only its own registration."""
        if self._buffer is None:
            return
        while True:
            handler, arguments = await self._buffer.get()
            if self._removed:
                return
            try:
                outcome = handler(*arguments)
                if inspect.isawaitable(outcome):
                    await outcome
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # The handler's awaitable was cancelled, not this task.
                self._source.handler_failed()
            except Exception:  # noqa: BLE001 - must not stop later calls
                self._source.handler_failed()

    def _note_synced(self) -> None:
        self.has_synced = True

    def _nothing(self) -> None:
        pass
