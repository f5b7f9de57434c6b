"""Reads facts of a cluster through its API, when a tool or another fact needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from controller_runtime.errors import ApiError
from virtual_node.examine.reader import Reader
from virtual_node.examine.snapshot import Fact, NotReadError, View

T = TypeVar("T")


class Source:
    """Reads the facts of one cluster through its API, each once, independent facts concurrently."""

    def __init__(self, view: View, reader: Reader, **options: Any) -> None:
        self.view = view
        """Receives the facts."""
        self.reader = reader
        """Reads the cluster with the user's rights."""
        self.options = options
        """What the user chose, such as a namespace for a dry run."""
        self._reading: dict[Fact[Any], asyncio.Task[Any]] = {}

    async def load(self, facts: Iterable[Fact[Any]]) -> None:
        """Read facts into the view; those that cannot be read are recorded there.

        Raises:
            ConfigError: the credentials cannot be used, such as those of an exec plugin.
        """
        # Not a TaskGroup, because its ExceptionGroup would hide a ConfigError.
        await asyncio.gather(*map(self._loaded, facts))

    async def fact(self, fact: Fact[T]) -> T:
        """Return a fact that another fact is read with.

        Raises:
            NotReadError: it cannot be read.
        """
        await self._loaded(fact)
        return self.view[fact]

    async def _loaded(self, fact: Fact[Any]) -> None:
        if self.view.get(fact) is None and fact in _READERS:
            if fact not in self._reading:
                self._reading[fact] = asyncio.create_task(self._read(fact))
            await self._reading[fact]

    async def _read(self, fact: Fact[Any]) -> None:
        try:
            self.view.put(fact, await _READERS[fact](self))
        except (ApiError, NotReadError) as error:
            self.view.refuse(fact, str(error))


Read = Callable[[Source], Awaitable[T]]
_READERS: dict[Fact[Any], Read[Any]] = {}


def reads(fact: Fact[T]) -> Callable[[Read[T]], Read[T]]:
    """Register how a fact is read; the function raises ApiError, or NotReadError with the reason."""

    def register(read: Read[T]) -> Read[T]:
        _READERS[fact] = read
        return read

    return register
