"""Requests to the kubelets of all lower nodes through the lower apiserver's node proxy."""

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
"""Seconds for one kubelet, so that a kubelet that does not answer cannot fail the whole request."""
_PATIENCE = 8.0
"""Seconds for all kubelets, because scrapers wait at most ten seconds."""
_REFUSED = 60.0
"""Seconds after which a path that all kubelets refused is requested again."""
_AT_ONCE = 32
_MOST_NODES = 5000
"""Maximum number of nodes to request, because a hostile lower cluster may list any number."""
_MOST_PARTS = 1_000_000
"""Maximum number of lines or JSON values in a response, because each takes at least fifty bytes of memory."""
_SMALL = 64 * 1024
"""Responses below this number of bytes are parsed without a thread, because starting a thread takes longer."""

_log = get_logger(component="kubelet")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """Responses of the lower kubelets.

    Attributes:
        by_node: Results of the kubelets that answered.
        refused: Whether all requests were refused, because permissions or the node proxy are missing.
    """

    by_node: dict[str, T]
    refused: bool = False


class LowerKubelets:
    """The kubelets of the lower nodes of one virtual node.

    Args:
        lower: The lower cluster.
        nodes: Returns the current names of the lower nodes.
    """

    def __init__(self, lower: Client, nodes: Callable[[], Sequence[str]]) -> None:
        self._lower = lower
        self._nodes = nodes
        self._refused_until: dict[str, float] = {}
        self._one_thread = asyncio.Lock()

    async def ask(self, path: str, read: Callable[[bytes], T]) -> Answers[T]:
        """Request a path from all kubelets concurrently.

        Args:
            path: Path of the kubelet API, without a leading slash.
            read: Parses one response, in a thread if it is large; it may raise ValueError. Each response is
                parsed on arrival, because the unparsed responses of a hundred nodes would take half a
                gigabyte.
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
                    "lower kubelets' metrics are refused; using the metrics API instead",
                    path=path,
                    why=str(failures[0]),
                )
            self._refused_until[path] = loop.time() + _REFUSED
        elif failures:
            _log.debug("lower kubelets did not answer", path=path, nodes=len(failures), why=str(failures[0]))
        return Answers(found, refused)

    async def _read(self, answer: bytes, read: Callable[[bytes], T]) -> T:
        if len(answer) < _SMALL:
            return read(answer)
        if len(answer) > _MOST_PARTS and sum(map(answer.count, (b"\n", b"[", b"{"))) > _MOST_PARTS:
            raise ValueError(f"more than {_MOST_PARTS:,} lines or values")
        # Parse in one thread at a time. More would not be faster, and name resolution uses the same thread
        # pool.
        async with self._one_thread:
            return await asyncio.to_thread(read, answer)
