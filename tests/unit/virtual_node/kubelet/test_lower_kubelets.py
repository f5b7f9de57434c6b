"""Lower kubelets whose answers are big."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from virtual_node.kubelet.lower_kubelets import LowerKubelets


class _Lower:
    async def request(self, *_: Any, **_more: Any) -> bytes:
        return self.answer

    def __init__(self, size: int) -> None:
        self.answer = bytes(size)


@pytest.mark.parametrize(("size", "beside"), [(1000, False), (1_000_000, True)])
async def test_a_big_answer_is_read_beside_the_loop(size: int, *, beside: bool) -> None:
    """A hundred nodes' /metrics/cadvisor would stop heartbeats and streams for seconds."""
    lower: Any = _Lower(size)
    answers = await LowerKubelets(lower, lambda: ["n1"]).ask("x", lambda _raw: threading.get_ident())
    assert (answers.by_node["n1"] != threading.get_ident()) is beside


async def test_big_answers_are_read_one_at_a_time() -> None:
    """They would not be read faster, and everybody who looks up a name waits for the same few threads."""
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
