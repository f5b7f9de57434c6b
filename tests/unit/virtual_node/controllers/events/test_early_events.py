"""Events of pods that the cache does not have are kept until it has them, in limited memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import TokenBucket
from tests.unit.virtual_node.controllers.events.mirroring import (
    Feed,
    Mirroring,
    dropped,
    event,
    lower_pod,
    upper_pod,
)
from virtual_node.controllers import events

pytestmark = pytest.mark.looptime


def _names(count: int) -> list[str]:
    return [f"p-{number}" for number in range(count)]


async def test_a_burst_of_events_before_their_pods_is_mirrored(monkeypatch: pytest.MonkeyPatch):
    """5,000 pods are scheduled before the watch of pods shows the first one. A tenth here, for a tenth of the limit."""
    pods = 5000 // 10
    monkeypatch.setattr(events, "LIMIT", events.LIMIT // 10)
    feed = Feed()
    mirroring = Mirroring(feed)
    before = {cause: dropped(cause) for cause in ("overflow", "unseen", "gone")}
    async with mirroring.running():
        for name in _names(pods):
            mirroring.upper.change("ADDED", upper_pod(name, uid=f"u-{name}"))
        await feed.send(*(event(f"e-{name}", pod=name, pod_uid=name, kind="Normal") for name in _names(pods)))
        await feed.send(*(event(f"w-{name}", pod=name, pod_uid=name) for name in _names(pods)))
        await asyncio.sleep(60)
        assert mirroring.sent == []
        for name in _names(pods):
            mirroring.lower.change("ADDED", lower_pod(name, uid=name, upper_uid=f"u-{name}"))
        await asyncio.sleep(pods / events._NORMAL_QPS)
    assert sorted(mirroring.sent) == sorted(f"{kind}-{name}" for name in _names(pods) for kind in "ew")
    assert {cause: dropped(cause) for cause in before} == before


async def test_only_the_latest_state_of_a_kept_event_is_mirrored():
    """A repetition replaces it."""
    feed = Feed()
    mirroring = Mirroring(feed)
    async with mirroring.running():
        mirroring.upper.change("ADDED", upper_pod("late", uid="u"))
        for count in (1, 2, 3):
            await feed.send(event("e", pod="late", pod_uid="l", count=count), kind="MODIFIED")
        mirroring.lower.change("ADDED", lower_pod("late", uid="l", upper_uid="u"))
        await asyncio.sleep(1)
    assert [sent["count"] for sent in mirroring.recorder.events] == [3]


async def test_a_listed_event_of_a_pod_that_is_not_seen_yet_is_kept():
    """After an outage, events may be listed before the watch of pods is back."""
    mirroring = Mirroring(Feed(event("e", pod="late", pod_uid="l")))
    async with mirroring.running():
        pass
    assert mirroring.sent == []
    mirroring = Mirroring(Feed(event("e", pod="late", pod_uid="l")))
    mirroring.add(upper_pod("late", uid="u"))
    async with mirroring.running():
        mirroring.lower.change("ADDED", lower_pod("late", uid="l", upper_uid="u"))
        await asyncio.sleep(1)
    assert mirroring.sent == ["e"]


async def test_the_lower_namespace_is_respected():
    """With a prefix, the pod's lower namespace has another name."""
    feed = Feed()
    mirroring = Mirroring(feed, prefix="up-")
    async with mirroring.running():
        mirroring.upper.change("ADDED", upper_pod("late", uid="u"))
        for namespace in ("n", "up-n"):
            await feed.send(event(f"in {namespace}", pod="late", pod_uid=namespace, namespace=namespace))
        for namespace in ("n", "up-n"):
            lower = lower_pod("late", uid=namespace, namespace=namespace, upper_uid="u", above="n")
            mirroring.lower.change("ADDED", lower)
        await asyncio.sleep(1)
    assert mirroring.sent == ["in up-n"]


@pytest.mark.parametrize(
    "pods",
    [
        {},
        {"upper": upper_pod("late", uid="u"), "lower": lower_pod("late", uid="current", upper_uid="u")},
        {"upper": upper_pod("late", uid="u", namespace="m")},
    ],
    ids=["no upper pod", "its lower pod is known", "another namespace"],
)
async def test_events_of_pods_that_cannot_be_ours_are_not_kept(pods: dict[str, Object]):
    """So that a lower user cannot choose the names for which events are kept."""
    feed = Feed()
    mirroring = Mirroring(feed)
    before = dropped("unseen")
    async with mirroring.running():
        for side, pod in pods.items():
            getattr(mirroring, side).change("ADDED", pod)
        await feed.send(event("e", pod="late", pod_uid="forged"))
        await asyncio.sleep(2 * events.LONGEST)
    assert mirroring.sent == []
    assert dropped("unseen") == before


async def test_an_event_of_a_successor_is_kept_while_its_predecessor_is_cached():
    """A StatefulSet's pod has the name of the deleted one."""
    feed = Feed()
    mirroring = Mirroring(feed)
    async with mirroring.running():
        mirroring.upper.change("DELETED", upper_pod())
        mirroring.upper.change("ADDED", upper_pod(uid="successor"))
        await feed.send(event("of the old one"), event("e", pod_uid="new"))
        mirroring.lower.change("DELETED", lower_pod())
        mirroring.lower.change("ADDED", lower_pod(uid="new", upper_uid="successor"))
        await asyncio.sleep(1)
    assert mirroring.sent == ["e"]
    assert mirroring.recorder.events[0]["involvedObject"]["uid"] == "successor"


async def test_an_event_of_a_deleted_lower_pod_reaches_the_upper_pod():
    """The reason of an eviction may arrive after the deletion, and the upper pod remains."""
    feed = Feed()
    mirroring = Mirroring(feed)
    async with mirroring.running():
        mirroring.lower.change("DELETED", lower_pod())
        await feed.send(event("evicted"), event("of an earlier one", pod_uid="earlier"))
    assert mirroring.sent == ["evicted"]


async def test_an_upper_user_gets_no_events_of_unmanaged_lower_pods():
    """Although the upper pod has the name of such a pod, and claims in its annotations to have started it."""
    feed = Feed()
    mirroring = Mirroring(feed)
    async with mirroring.running():
        mirroring.upper.change(
            "ADDED", upper_pod("db", uid="u", **{names.ANNOTATION_LOWER_UID: "unmanaged/u"})
        )
        await feed.send(event("secret", pod="db", pod_uid="unmanaged"))
        await asyncio.sleep(2 * events.LONGEST)
    assert mirroring.sent == []


async def test_events_of_pods_that_never_appear_expire():
    """Each counts as dropped."""
    feed = Feed()
    mirroring = Mirroring(feed)
    before = dropped("unseen")
    async with mirroring.running():
        mirroring.upper.change("ADDED", upper_pod("late", uid="u"))
        for number in range(3):
            await feed.send(event(f"e-{number}", pod="late", pod_uid="l"))
        await asyncio.sleep(events.LONGEST / 2)
        assert dropped("unseen") == before
        await asyncio.sleep(events.LONGEST)
        assert dropped("unseen") == before + 3
        mirroring.lower.change("ADDED", lower_pod("late", uid="l", upper_uid="u"))
        await asyncio.sleep(1)
    assert mirroring.sent == []


@pytest.mark.parametrize("pods", ["one pod", "many pods"])
async def test_a_flood_of_events_of_unknown_pods_displaces_only_its_own_namespace(
    pods: str, monkeypatch: pytest.MonkeyPatch
):
    """Memory is limited, whatever uids a lower user writes."""
    monkeypatch.setattr(events, "LIMIT", 100_000)
    feed = Feed()
    mirroring = Mirroring(feed)
    before = dropped("overflow")
    async with mirroring.running():
        mirroring.upper.change("ADDED", upper_pod("late", uid="u"))
        mirroring.upper.change("ADDED", upper_pod("waiting", uid="w", namespace="m"))
        await feed.send(event("quiet", pod="late", pod_uid="l"))
        fields: dict[str, Any] = {"pod": "waiting", "namespace": "m"}
        for number in range(1000):
            uid = "forged" if pods == "one pod" else f"forged-{number}"
            await feed.send(event(f"flood-{number}", pod_uid=uid, **fields))
        assert dropped("overflow") - before >= 800
        mirroring.lower.change("ADDED", lower_pod("late", uid="l", upper_uid="u"))
        await asyncio.sleep(1)
    assert mirroring.sent == ["quiet"]


async def test_normal_events_keep_their_rate_after_a_release(monkeypatch: pytest.MonkeyPatch):
    """Thousands of kept events do not delay the writes of pods."""
    monkeypatch.setattr(events, "TokenBucket", lambda qps, burst: TokenBucket(qps and 1, burst and 10))
    feed = Feed()
    mirroring = Mirroring(feed)
    async with mirroring.running():
        mirroring.upper.change("ADDED", upper_pod("late", uid="u"))
        await feed.send(
            *(event(f"e-{number}", pod="late", pod_uid="l", kind="Normal") for number in range(100))
        )
        mirroring.lower.change("ADDED", lower_pod("late", uid="l", upper_uid="u"))
        await asyncio.sleep(20)
    assert 25 <= len(mirroring.sent) <= 35
