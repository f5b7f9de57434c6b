"""One question to the kubelets of all lower nodes, through the lower apiserver's node proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.log import get_logger

T = TypeVar("T")

_TIMEOUT = 4.0
"""Seconds one kubelet may take; one that hangs must not cost the whole answer."""
_PATIENCE = 8.0
"""Seconds for all of them; a scraper waits ten at most."""
_REFUSED = 60.0
"""Seconds before a question that all kubelets refused is put to them again."""
_AT_ONCE = 32
_MOST_NODES = 5000
"""Nodes that are asked; a hostile lower cluster may have any number."""
_MOST_PARTS = 1_000_000
"""Lines, or JSON values, of one answer: each takes fifty bytes of memory and more, however short it is."""
_SMALL = 64 * 1024
"""Bytes that are read in less time than it takes to have another thread read them."""

_log = get_logger(component="kubelet")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What the kubelets said.

    Attributes:
        by_node: Of those that did.
        refused: Every kubelet is out of our reach: the rights, or the proxy, are missing.
    """

    by_node: dict[str, T]
    refused: bool = False


class LowerKubelets:
    """The kubelets behind one virtual node.

    Args:
        lower: The lower cluster.
        nodes: Names the lower nodes, now.
    """

    def __init__(self, lower: Client, nodes: Callable[[], Sequence[str]]) -> None:
        self._lower = lower
        self._nodes = nodes
        self._refused_until: dict[str, float] = {}
        self._one_thread = asyncio.Lock()

    async def ask(self, path: str, read: Callable[[bytes], T]) -> Answers[T]:
        """Ask them all at once.

        Args:
            path: Of the kubelet API, without a slash before it.
            read: Makes sense of one answer, in a thread when it is big; it may raise ValueError. Each answer is read
                as soon as it is there: those of a hundred nodes, whole, would be half a gigabyte.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._refused_until.get(path, 0.0):
            return Answers({}, refused=True)
        nodes = self._nodes()[:_MOST_NODES]
        found: dict[str, T] = {}
        failures: list[Exception] = []
        limit = asyncio.Semaphore(_AT_ONCE)

        async def ask(node: str) -> None:
            try:
                url = f"/api/v1/nodes/{node}/proxy/{path}"
                async with limit, self._lower.receive("GET", url, timeout=_TIMEOUT, flow="metrics") as answer:
                    found[node] = await self._read(answer, read)
            except (ApiError, ConfigError) as error:
                failures.append(error)
            except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
                failures.append(ValueError(f"not what a kubelet sends: {error!r}"))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await asyncio.gather(*map(ask, nodes))
        refused = 0 < len(nodes) == sum(isinstance(one, Forbidden | NotFound) for one in failures)
        if refused:
            if path not in self._refused_until:
                _log.info(
                    "lower kubelets' metrics are refused; the metrics API serves instead",
                    path=path,
                    why=str(failures[0]),
                )
            self._refused_until[path] = loop.time() + _REFUSED
        elif failures:
            _log.debug(
                "lower kubelets without an answer", path=path, nodes=len(failures), why=str(failures[0])
            )
        return Answers(found, refused)

    async def _read(self, answer: bytes, read: Callable[[bytes], T]) -> T:
        if len(answer) < _SMALL:
            return read(answer)
        if len(answer) > _MOST_PARTS and sum(map(answer.count, (b"\n", b"[", b"{"))) > _MOST_PARTS:
            raise ValueError(f"more than {_MOST_PARTS:,} lines or values")
        # More would not be faster, and name resolution waits for the same few threads.
        async with self._one_thread:
            return await asyncio.to_thread(read, answer)
