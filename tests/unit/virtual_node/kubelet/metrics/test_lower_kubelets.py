"""Lower kubelets with large responses."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from virtual_node.kubelet.metrics import LowerKubelets


class _Lower:
    def __init__(self, size: int, *, answer: bytes = b"") -> None:
        self.answer = answer or bytes(size)

    @asynccontextmanager
    async def receive(self, *_: Any, **_more: Any) -> AsyncIterator[bytes]:
        yield self.answer


@pytest.mark.parametrize(("size", "beside"), [(1000, False), (1_000_000, True)])
async def test_a_large_response_is_parsed_in_a_thread(size: int, *, beside: bool) -> None:
    """A hundred nodes' /metrics/cadvisor would stop heartbeats and streams for seconds."""
    lower: Any = _Lower(size)
    answers = await LowerKubelets(lower, lambda: ["n1"]).ask("x", lambda _raw: threading.get_ident())
    assert (answers.by_node["n1"] != threading.get_ident()) is beside


async def test_large_responses_are_parsed_one_at_a_time() -> None:
    """Concurrency would not be faster, and name resolution uses the same few threads."""
    lower: Any = _Lower(1_000_000)
    reading: list[int] = []
    most = 0

    def read(_raw: bytes) -> None:
        nonlocal most
        reading.append(1)
        most = max(most, len(reading))
        time.sleep(0.01)
        reading.pop()

    answers = await LowerKubelets(lower, lambda: [f"n{number}" for number in range(10)]).ask("x", read)
    assert len(answers.by_node) == 10
    assert most == 1


@pytest.mark.parametrize("answer", [b"a\n" * 1_100_000, b"[" * 1_100_000, b"{}" * 1_100_000])
async def test_responses_of_many_small_parts_are_refused(answer: bytes) -> None:
    """Lines and values cost many times their bytes: a hostile lower cluster must not determine their number."""
    lower: Any = _Lower(0, answer=answer)
    found = await LowerKubelets(lower, lambda: ["n1"]).ask("x", len)
    assert found.by_node == {}


@pytest.mark.parametrize(
    "read",
    [lambda raw: raw[10**9], lambda raw: len(raw) / 0, lambda raw: {b"x": 1}[raw], lambda raw: raw.nothing],
)
async def test_an_invalid_response_affects_only_its_node(read: Callable[[Any], Any]) -> None:
    """Other nodes' responses are used."""
    lower: Any = _Lower(10)
    nodes = iter(["bad", "good"])
    found = await LowerKubelets(lower, lambda: ["n1", "n2"]).ask(
        "x", lambda raw: read(raw) if next(nodes) == "bad" else "good"
    )
    assert list(found.by_node.values()) == ["good"]
