"""Events of the lower cluster are mirrored, also from servers that end watches early."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from controller_runtime.errors import Expired, Forbidden
from controller_runtime.objects import Object, WatchEvent
from tests.unit.virtual_node.controllers.events.mirroring import (
    Copies,
    Feed,
    Mirroring,
    Server,
    dropped,
    event,
    lower_pod,
    upper_pod,
)
from virtual_node.controllers import events as mirror
from virtual_node.translate.objects import events

pytestmark = pytest.mark.looptime


@pytest.fixture
def spam_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one pod stand for the thousands with which the events of a cluster are limited."""
    monkeypatch.setattr(mirror, "OBJECT_BURST", 10_000)


async def test_existing_and_new_events_are_mirrored():
    server = Server(event("old"), change=WatchEvent("ADDED", event("new")))
    assert (await Mirroring(server).run(0.05))[:2] == ["old", "new"]


async def test_events_of_other_pods_are_not_mirrored():
    """Of unmanaged pods, and of an earlier pod with the same name."""
    server = Server(event("stranger", pod="other"), event("before", pod_uid="earlier"), event("ours"))
    assert await Mirroring(server).run(0.05) == ["ours"]


async def test_listed_events_of_other_pods_are_not_kept_in_memory():
    """A cluster keeps events for an hour, most of them of pods that are gone, and lists them again after an outage."""
    server = Server(*(event(f"gone-{number}", pod="gone") for number in range(100)), event("ours"))
    assert await Mirroring(server).run(0.05) == ["ours"]
    assert len({id(event) for event in server.read}) == 1


async def test_deletion_of_an_event_is_ignored():
    """Servers delete events after an hour."""
    server = Server(change=WatchEvent("DELETED", event("old")))
    assert await Mirroring(server).run(0.05) == []


async def test_warnings_overtake_normal_events():
    """Also in a burst of a thousand Normal ones."""
    burst = [event(f"scheduled-{number}", kind="Normal") for number in range(1000)]
    sent = await Mirroring(Server(*burst, event("failed"))).run(1)
    assert "failed" in sent[:51]
    assert 50 <= len(sent) <= 100


async def test_missing_history_is_listed_again():
    """Events meanwhile are mirrored, too."""
    server = Server(error=Expired("too old", code=410))
    mirroring = Mirroring(server)
    async with mirroring.running():
        before = server.lists
        server.there.append(event("meanwhile"))
        await asyncio.sleep(60)
    assert server.lists > before
    assert "meanwhile" in mirroring.sent


@pytest.mark.parametrize("error", [None, Expired("too old", code=410)])
async def test_a_server_that_ends_watches_at_once_gets_no_request_loop(error: Exception | None):
    """For example because of a proxy, or because its history always expires."""
    server = Server(error=error)
    await Mirroring(server).run(60)
    assert 2 <= server.asked <= 30


@pytest.mark.usefixtures("spam_is_allowed")
async def test_waiting_normal_events_of_pods_that_are_gone_are_dropped():
    """After a burst, thousands wait, and ``kubectl describe`` no longer shows the events of a deleted pod."""
    mirroring = Mirroring(Server(*(event(f"e-{number}", kind="Normal") for number in range(200))))
    before = dropped("gone")
    async with mirroring.running():
        await asyncio.sleep(1)
        mirroring.upper.change("DELETED", upper_pod())
        await asyncio.sleep(1)
        sent = len(mirroring.sent)
        await asyncio.sleep(60)
    assert 50 <= sent < 200
    assert len(mirroring.sent) == sent
    assert dropped("gone") - before == 200 - sent


@pytest.mark.usefixtures("spam_is_allowed")
async def test_a_repeated_event_that_still_waits_is_written_once():
    """In its latest state, and a list of the same events does not fill the memory a second time."""
    feed = Feed(*(event(f"e-{number}", kind="Normal") for number in range(200)))
    mirroring = Mirroring(feed)
    async with mirroring.running():
        await feed.send(*(event(f"e-{number}", kind="Normal", count=2) for number in range(200)))
        await asyncio.sleep(30)
    assert len(mirroring.sent) == 250  # 50 were written before
    assert {sent["message"] for sent in mirroring.recorder.events if sent.get("count") == 2} == {
        f"e-{number}" for number in range(200)
    }


async def test_an_event_that_changes_after_its_copy_is_written_again():
    """Such as the count of a container's restarts, which arrives as a change of the same event."""
    feed = Feed()
    mirroring = Mirroring(feed)
    async with mirroring.running():
        await feed.send(event("back-off", count=1))
        await feed.send(event("back-off", count=2, series={"count": 2}), kind="MODIFIED")
    assert [(sent["count"], sent.get("series")) for sent in mirroring.recorder.events] == [
        (1, None),
        (2, {"count": 2}),
    ]


@pytest.mark.usefixtures("spam_is_allowed")
async def test_namespaces_take_turns():
    """A tenant's events do not wait for the thousands of another."""
    feed = Feed()
    mirroring = Mirroring(feed)
    async with mirroring.running():
        mirroring.upper.change("ADDED", upper_pod(uid="quiet", namespace="m"))
        mirroring.lower.change("ADDED", lower_pod(uid="q", namespace="m", upper_uid="quiet"))
        await feed.send(*(event(f"flood-{number}", kind="Normal") for number in range(1000)))
        await feed.send(event("quiet", pod_uid="q", namespace="m", kind="Normal"))
        await asyncio.sleep(1)
    assert "quiet" in mirroring.sent


@pytest.mark.usefixtures("spam_is_allowed")
@pytest.mark.parametrize("kind", ["Warning", "Normal"])
async def test_a_tenant_displaces_only_its_own_waiting_events(kind: str, monkeypatch: pytest.MonkeyPatch):
    """While the upper API server is down, and one tenant's events fill the memory."""
    for limit in ("_NORMAL_LIMIT", "_WARNING_LIMIT"):
        monkeypatch.setattr(mirror, limit, 200_000)
    feed = Feed()
    mirroring = Mirroring(feed)
    mirroring.recorder.gate.clear()
    before = dropped("overflow")
    async with mirroring.running():
        mirroring.upper.change("ADDED", upper_pod(uid="quiet", namespace="m"))
        mirroring.lower.change("ADDED", lower_pod(uid="q", namespace="m", upper_uid="quiet"))
        await feed.send(event("quiet", pod_uid="q", namespace="m", kind=kind))
        await feed.send(*(event(f"flood-{number}", kind=kind) for number in range(1000)))
        mirroring.recorder.gate.set()
        await asyncio.sleep(60)
    assert "quiet" in mirroring.sent
    assert "flood-999" in mirroring.sent
    assert "flood-1" not in mirroring.sent
    assert dropped("overflow") - before == 1001 - len(mirroring.sent)


@pytest.mark.usefixtures("spam_is_allowed")
async def test_a_list_keeps_the_events_of_each_tenant_in_limited_memory(monkeypatch: pytest.MonkeyPatch):
    """A lower user has written thousands of events about one pod before the virtual node starts."""
    monkeypatch.setattr(mirror, "_LISTED_LIMIT", 75_000)
    server = Server(
        event("quiet", pod_uid="q", namespace="m"), *(event(f"flood-{number}") for number in range(1000))
    )
    mirroring = Mirroring(server)
    mirroring.add(upper_pod(uid="quiet", namespace="m"), lower_pod(uid="q", namespace="m", upper_uid="quiet"))
    before = dropped("overflow")
    async with mirroring.running():
        await asyncio.sleep(1)
    assert "quiet" in mirroring.sent
    assert 50 < len(set(mirroring.sent)) < 200
    assert dropped("overflow") - before == server.lists * (1001 - len(set(mirroring.sent)))


@pytest.mark.usefixtures("spam_is_allowed")
@pytest.mark.parametrize("way", ["listed", "waiting", "early"])
async def test_events_are_cut_before_they_wait(way: str, monkeypatch: pytest.MonkeyPatch):
    """Each is just below the limit, and only its copy's few KiB use memory."""
    for module, limit in ((mirror, "_LISTED_LIMIT"), (mirror, "_WARNING_LIMIT"), (mirror, "LIMIT")):
        monkeypatch.setattr(module, limit, 500_000)
    fields = {"pod": "late", "pod_uid": "l"} if way == "early" else {}
    large = [
        event(f"e-{number}", message=f"{number}" + "é" * 30_000, unknown="x" * 3000, **fields)
        for number in range(100)
    ]
    feed = Feed(*(large if way == "listed" else ()))
    mirroring = Mirroring(feed)
    before = dropped("overflow")
    async with mirroring.running():
        if way == "early":
            mirroring.upper.change("ADDED", upper_pod("late", uid="u"))
        if way != "listed":
            await feed.send(*large)
        if way == "early":
            mirroring.lower.change("ADDED", lower_pod("late", uid="l", upper_uid="u"))
        await asyncio.sleep(1)
    assert len(mirroring.sent) == 100
    assert all(len(message.encode()) <= 1024 for message in mirroring.sent)
    assert dropped("overflow") == before


async def test_the_normal_events_of_a_burst_of_pods_fit(monkeypatch: pytest.MonkeyPatch):
    """The scheduler and the kubelet write five for each of 5,000 pods in one namespace, faster than they are copied.

    A twentieth of the pods here, for a twentieth of the limit.
    """
    monkeypatch.setattr(mirror, "_NORMAL_LIMIT", mirror._NORMAL_LIMIT // 20)
    feed = Feed()
    mirroring = Mirroring(feed)
    mirroring.recorder.gate.clear()
    reasons = {
        "Scheduled": "Successfully assigned shop/{} to node-17.pool-a.example.com",
        "Pulling": 'Pulling image "registry.example.com/shop/web:1.2.3"',
        "Pulled": 'Successfully pulled image "registry.example.com/shop/web:1.2.3" in 1.7s (2.9s including waiting)',
        "Created": "Created container: main of {}",
        "Started": "Started container: main of {}",
    }
    before = dropped("overflow")
    async with mirroring.running():
        for number in range(5000 // 20):
            name = f"web-7c9d8b5f4d-{number:05d}"
            uids = [str(uuid.uuid4()) for _ in range(2)]
            mirroring.upper.change("ADDED", upper_pod(name, uid=uids[0]))
            mirroring.lower.change("ADDED", lower_pod(name, uid=uids[1], upper_uid=uids[0]))
            fields: dict[str, Any] = {
                "pod": name, "pod_uid": uids[1], "kind": "Normal", "source": {"component": "kubelet"}, "count": 1,
                "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
                "reportingComponent": "kubelet", "reportingInstance": "node-17.pool-a.example.com",
            }  # fmt: skip
            await feed.send(
                *(
                    event(str(uuid.uuid4()), reason=reason, **fields, message=message.format(name))
                    for reason, message in reasons.items()
                )
            )
        assert dropped("overflow") == before


async def test_a_huge_event_is_not_copied():
    """A lower user can write a megabyte; the events of Kubernetes are a thousand times smaller."""
    huge = {"message": "x" * 1_000_000}
    feed = Feed(event("listed", **huge), event("foreign", pod="other", **huge))
    mirroring = Mirroring(feed)
    before = dropped("oversized")
    async with mirroring.running():
        await feed.send(event("watched", **huge), event("small"))
    assert mirroring.sent == ["small"]
    assert dropped("oversized") - before == 2


@pytest.mark.usefixtures("spam_is_allowed")
async def test_events_wait_while_the_recorder_has_no_room():
    """Otherwise 2,000 Warnings would displace each other and the virtual node's own events."""
    feed = Feed(*(event(f"failed-{number}") for number in range(2000)))
    mirroring = Mirroring(feed)
    mirroring.recorder.gate.clear()
    async with mirroring.running():
        await asyncio.sleep(10)
        assert mirroring.sent == []
        mirroring.recorder.gate.set()
        await asyncio.sleep(60)
    assert len(mirroring.sent) == 2000


async def test_one_pod_has_as_many_copies_as_honest_components_write():
    """A hostile cluster floods one pod with Warnings of ever other components and reasons."""
    feed = Feed(
        *(
            event(f"flood-{number}", reason=f"R{number}", source={"component": f"c{number}"})
            for number in range(900)
        )
    )
    mirroring = Mirroring(feed)
    mirroring.add(upper_pod(uid="quiet", namespace="m"), lower_pod(uid="q", namespace="m", upper_uid="quiet"))
    before = dropped("spam")
    async with mirroring.running():
        await feed.send(event("quiet", pod_uid="q", namespace="m"))
        await asyncio.sleep(1)
        assert len(mirroring.sent) == 101
        assert "quiet" in mirroring.sent
        assert dropped("spam") - before == 800
        await asyncio.sleep(300)
        await feed.send(*(event(f"later-{number}") for number in range(100)))
    assert len(mirroring.sent) == 105


async def test_the_warnings_of_a_cluster_are_limited():
    """With thousands of pods, so that no pod is above its own limit; no Warning is lost."""
    feed = Feed()
    mirroring = Mirroring(feed)
    for number in range(50):
        mirroring.add(
            upper_pod(f"p{number}", uid=f"u{number}"),
            lower_pod(f"p{number}", uid=f"l{number}", upper_uid=f"u{number}"),
        )
    async with mirroring.running():
        await feed.send(
            *(
                event(f"{pod}-{number}", pod=f"p{pod}", pod_uid=f"l{pod}")
                for pod in range(50)
                for number in range(60)
            )
        )
        await asyncio.sleep(10)
        assert 1000 <= len(mirroring.sent) <= 1000 + 20 * 11
        await asyncio.sleep(200)
    assert len(set(mirroring.sent)) == 3000


@pytest.mark.parametrize(
    "fields",
    [{"involvedObject": "x"}, {"involvedObject": {"uid": ["x"]}}, {"involvedObject": None}, {"source": "x"}],
    ids=str,
)
async def test_malformed_events_stop_nothing(fields: dict[str, Any]):
    """A hostile lower API server sends anything."""
    feed = Feed(event("listed", **fields))
    mirroring = Mirroring(feed)
    async with mirroring.running():
        await feed.send(event("malformed", **fields), event("valid"))
    assert mirroring.sent[-1] == "valid"


def _copy(lower: Object, **changes: Any) -> dict[str, Any]:
    """Return the upper event that was made for a lower event, as a server returns it."""
    made = events.upper_event(lower.to_dict(), upper_pod().to_dict(), node_name="vn")
    return {"firstTimestamp": None, "eventTime": None, **made, **changes}


@pytest.mark.parametrize(
    ("changes", "is_written"),
    [
        ({}, False),
        ({"involvedObject": {}, "source": {"component": "else"}}, False),
        ({"count": 2}, True),
        ({"lastTimestamp": "2026-01-02T03:04:05Z"}, True),
        ({"series": {"count": 2}}, True),
        ({"message": "else"}, True),
        ({"message": 10**3000, "count": "x", "series": [1e300], "type": None}, True),
        ({"metadata": {"name": "ours.uid", "namespace": "of-others"}}, True),
        ({"metadata": {}}, True),
    ],
)
@pytest.mark.parametrize("kind", ["Warning", "Normal"])
async def test_only_events_that_differ_from_their_copy_are_written(
    *, kind: str, changes: dict[str, Any], is_written: bool
):
    """After a restart, nothing is written if nothing changed; a tenant's event is no reason to skip another."""
    copied = event("uid", kind=kind)
    server = Server(copied, event("new", kind=kind))
    sent = await Mirroring(server, Copies(_copy(copied, **changes))).run(0.05)
    assert sent == (["uid", "new"] if is_written else ["new"])


async def test_events_are_written_again_if_their_copies_cannot_be_listed():
    """For example until the chart of a new version grants the right."""
    copies = Copies(_copy(event("listed")), error=Forbidden("no right", code=403))
    assert await Mirroring(Server(event("listed"), event("unlisted")), copies).run(0.05) == ["unlisted"]
