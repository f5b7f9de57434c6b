"""Open streams are limited for each namespace and in total; a refusal names the setting."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.virtual_node.kubelet.conftest import Rig
from tests.unit.virtual_node.kubelet.stream_client import SPDY, closed, echo, upgrade
from virtual_node.config.file import validate
from virtual_node.config.types import Config, KubeletConfig, KubeletLimits
from virtual_node.kubelet.base import Refusal
from virtual_node.kubelet.streams.limits import StreamLimits, exceeded

EXEC = "/exec/shop/web-1/main?output=1&command=sh"


async def test_too_many_streams_are_refused_until_another_ends(rig: Rig):
    """With a text that kubectl shows; all verbs share the limit."""
    async with rig(echo, stream_limits=StreamLimits(total=10, per_namespace=2)) as (_, node):
        streams = [await upgrade(node) for _ in range(2)]
        code, _, text = await node.ask(EXEC, *SPDY, method="POST")
        assert code == 429
        assert text == (
            "too many open streams (exec, attach, port-forward, logs) to pods of namespace shop: "
            "kubelet.limits.streamsPerNamespace of the virtual node is 2"
        )
        code, _, text = await node.ask("/containerLogs/shop/web-1/main")
        assert code == 400, "the API server would replace the text of a 429"
        assert "kubelet.limits.streamsPerNamespace" in text
        await closed(streams[0][2])
        _, _, writer = await upgrade(node)
        await closed(writer)
        await closed(streams[1][2])


def test_one_namespace_leaves_room_for_others():
    """Up to the total limit."""
    limits = StreamLimits(total=5, per_namespace=2)
    with contextlib.ExitStack() as stack:
        for namespace in ("a", "a", "b", "b", "c"):
            stack.enter_context(limits.hold("exec", namespace, "/exec"))
        with pytest.raises(Refusal, match=r"namespace a: kubelet.limits.streamsPerNamespace"):
            stack.enter_context(limits.hold("exec", "a", "/exec"))
        with pytest.raises(Refusal, match=r"kubelet.limits.streams of the virtual node is 5"):
            stack.enter_context(limits.hold("exec", "c", "/exec"))
    with limits.hold("exec", "a", "/exec"):
        pass
    assert not limits._open


def test_a_tenant_with_many_namespaces_does_not_lock_out_others():
    """The attack: `logs -f` in fifty namespaces, as often as it succeeds, also with long requests."""
    limits = StreamLimits()
    with contextlib.ExitStack() as stack:
        for target in ("/logs", "x" * 1_000_000):
            for namespace in range(50):
                with contextlib.suppress(Refusal):
                    while True:
                        stack.enter_context(limits.hold("logs", f"attacker-{namespace}", target))
        stack.enter_context(limits.hold("exec", "victim", "/exec"))
        with pytest.raises(Refusal, match="the last are kept for namespaces with few"):
            stack.enter_context(limits.hold("exec", "attacker-8", "/exec"))


@given(
    total=st.integers(5, 40),
    per_namespace=st.integers(1, 60),
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 17), st.sampled_from((True, False, False))),
        min_size=30,
        max_size=150,
    ),
)
def test_only_many_namespaces_exhaust_the_streams(total, per_namespace, steps):
    """Fewer namespaces than a tenth of all streams never lock out another one."""
    streams: Counter[str] = Counter()
    for number, weight, closes in steps:
        namespace = str(number % max(1, total // 10 - 1))
        if closes:
            streams[namespace] -= min(weight, streams[namespace])
        elif exceeded(streams, namespace, weight, total=total, per_namespace=per_namespace) is None:
            streams[namespace] += weight
        assert streams.total() <= total
        assert max(streams.values(), default=0) <= per_namespace
        if sum(1 for held in streams.values() if held) < total // 10:
            assert exceeded(streams, "other", 1, total=total, per_namespace=per_namespace) is None


def test_long_request_counts_as_several_streams():
    """It is kept in memory while the stream is open."""
    limits = StreamLimits(total=100, per_namespace=20)
    script = "/exec?command=" + "x" * 1_000_000
    with limits.hold("exec", "a", script), pytest.raises(Refusal), limits.hold("exec", "a", script):
        pass


@pytest.mark.parametrize(
    ("limits", "is_valid"),
    [({}, True), ({"connections": 1000}, False), ({"unauthorized_connections": 1200}, False),
     ({"streams": 10, "connections": 200}, True)],
)  # fmt: skip
def test_connections_leave_room_for_requests(limits, is_valid):
    """Otherwise open streams would lock the API server out."""
    problems = validate(Config(kubelet=KubeletConfig(limits=KubeletLimits(**limits))))
    assert bool([text for text in problems if "kubelet.limits" in text]) is not is_valid
