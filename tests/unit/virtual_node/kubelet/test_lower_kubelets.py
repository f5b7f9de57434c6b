"""Lower kubelets whose answers are big."""

from __future__ import annotations

import threading
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
