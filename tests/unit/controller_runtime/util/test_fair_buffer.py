"""A buffer of several tenants keeps each one's values in order, and lets none displace another's."""

from __future__ import annotations

import pytest

from controller_runtime.util.buffers import FairBuffer


def _filled(*values: tuple[str, int]) -> FairBuffer[str, str]:
    """Return a buffer with values ``<flow><number>``, each with its flow and size."""
    buffer: FairBuffer[str, str] = FairBuffer()
    for number, (flow, size) in enumerate(values):
        buffer.put(flow, f"{flow}{number}", f"{flow}{number}", size=size)
    return buffer


def _drained(buffer: FairBuffer[str, str]) -> list[str]:
    taken = []
    while (value := buffer.take()) is not None:
        taken.append(value)
    assert buffer.size == 0
    return taken


def test_flows_take_turns_and_keep_their_order():
    assert _drained(_filled(("a", 1), ("a", 1), ("a", 1), ("b", 1), ("c", 1))) == [
        "a0",
        "b3",
        "c4",
        "a1",
        "a2",
    ]


def test_a_value_of_the_same_key_is_replaced_in_its_place():
    buffer = _filled(("a", 1), ("a", 5))
    buffer.put("a", "a0", "newer", size=3)
    assert buffer.size == 8
    assert buffer.get("a", "a0") == "newer"
    assert _drained(buffer) == ["newer", "a1"]


def test_keys_of_different_flows_are_independent():
    buffer: FairBuffer[str, str] = FairBuffer()
    buffer.put("a", "same", "of a")
    buffer.put("b", "same", "of b")
    assert buffer.remove("a", "same") == "of a"
    assert buffer.get("a", "same") is None
    assert _drained(buffer) == ["of b"]


@pytest.mark.parametrize(
    ("values", "evicted"),
    [
        ([("a", 1), ("b", 1), ("b", 1)], ["b1", "a0", "b2"]),
        ([("a", 1), ("a", 1), ("b", 9)], ["b2", "a0", "a1"]),
        ([("a", 4), ("b", 3), ("a", 4), ("b", 3)], ["a0", "b1", "a2", "b3"]),
    ],
    ids=["most values", "largest value", "alternating"],
)
def test_the_largest_flow_loses_its_oldest_value(values: list[tuple[str, int]], evicted: list[str]):
    buffer = _filled(*values)
    assert [buffer.evict() for _ in values] == evicted
    assert buffer.size == 0


def test_a_flood_of_one_flow_evicts_nothing_of_the_others():
    buffer = _filled(*[("quiet", 1)] * 10)
    for number in range(1000):
        buffer.put("flood", str(number), "x")
        while buffer.size > 50:
            assert buffer.evict() == "x"
    assert [buffer.get("quiet", f"quiet{number}") for number in range(10)].count(None) == 0


def test_skipped_keys_stay_in_their_place():
    buffer = _filled(("a", 1), ("a", 1), ("b", 1))
    assert buffer.take(but={"a0", "b2"}) == "a1"
    assert buffer.take(but={"a0", "b2"}) is None
    assert sorted(_drained(buffer)) == ["a0", "b2"]


def test_the_oldest_value_of_each_flow_is_known():
    buffer = _filled(("a", 1), ("b", 1), ("a", 1))
    assert buffer.oldest() == [("a", "a0", "a0"), ("b", "b1", "b1")]
    buffer.remove("a", "a0")
    assert buffer.oldest() == [("a", "a2", "a2"), ("b", "b1", "b1")]
