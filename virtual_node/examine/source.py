"""Reads facts of a cluster through its API, when a tool or another fact needs them.

The facts of the upper cluster by which all tools judge an installation are read here. Imports little, because ``status`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.errors import ApiError, Forbidden, NotFound
from controller_runtime.resources import Resource
from virtual_node.examine.components import SELECTORS
from virtual_node.examine.facts import BOUND, COMPONENTS, LEASES, NODES, SWARMS, WAITING
from virtual_node.examine.objects import WITHOUT_NODE, Json, is_virtual, key
from virtual_node.examine.reader import VIRTUAL_NODES, Reader
from virtual_node.examine.snapshot import Fact, NotReadError, View

T = TypeVar("T")


class Source:
    """Reads the facts of one cluster through its API, each once, independent facts concurrently."""

    def __init__(self, view: View, reader: Reader) -> None:
        self.view = view
        """Receives the facts."""
        self.reader = reader
        """Reads the cluster with the user's rights."""
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


@reads(NODES)
async def _nodes(source: Source) -> Sequence[Json]:
    listed = await source.reader.objects(resources.NODES, label_selector=VIRTUAL_NODES)
    return list(filter(is_virtual, listed))


@reads(BOUND)
async def _bound(source: Source) -> Sequence[Json]:
    selectors = [f"spec.nodeName={node['metadata']['name']}" for node in await source.fact(NODES)]
    read = source.reader.objects
    listed = await asyncio.gather(*(read(resources.PODS, field_selector=each) for each in selectors))
    return [pod for of_node in listed for pod in of_node]


@reads(WAITING)
async def _waiting(source: Source) -> Sequence[Json]:
    return await source.reader.objects(resources.PODS, field_selector=WITHOUT_NODE)


@reads(LEASES)
async def _leases(source: Source) -> dict[str, Json]:
    listed = await source.reader.objects(resources.LEASES, namespace=names.NODE_LEASES)
    return {lease["metadata"]["name"]: lease for lease in listed}


@reads(SWARMS)
async def _swarms(source: Source) -> Sequence[Json]:
    try:
        return [each.to_dict() for each in (await source.reader.client.list(names.SWARMS)).items]
    except (Forbidden, NotFound):
        return []  # Swarms are optional.


@reads(COMPONENTS)
async def _components(source: Source) -> Sequence[Json]:
    return await labelled(source.reader, resources.PODS)


async def labelled(reader: Reader, resource: Resource) -> list[Json]:
    """Return the objects of our installation.

    Raises:
        ApiError: the list is forbidden, or the cluster does not answer.
    """
    listed = await asyncio.gather(*(reader.objects(resource, label_selector=each) for each in SELECTORS))
    return sorted(chain.from_iterable(listed), key=key)
