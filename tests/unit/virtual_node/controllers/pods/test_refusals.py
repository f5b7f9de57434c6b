"""Many refused pods leave the rate limit to others, and start as soon as they are admitted."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from controller_runtime.errors import ApiError, Forbidden, Unavailable
from tests.thorough import size
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, lower_pod, running
from virtual_node.controllers.pods.refusals import FIRST, LONGEST, QuotaGate

PODS = 60


class Quota:
    """A ResourceQuota in lower namespace ``shop`` that counts pods, and refuses large ones if there is too little room."""

    def __init__(self, scene: Scene, *, pods: int) -> None:
        self.pods = pods
        self.asked: list[tuple[float, str]] = []
        self._scene = scene
        scene.lower.fault = self._judge

    def _judge(self, verb: str, plural: str, key: str) -> ApiError | None:
        if (verb, plural) != ("create", "pods"):
            return None
        self.asked.append((asyncio.get_running_loop().time(), key))
        used = len([one for one in self._scene.lower.objects if one[0] == "pods"])
        if used < self.pods:
            return None
        return Forbidden(f"exceeded quota: q, used: pods={used}, limited: pods={self.pods}", code=403)


def bind(scene: Scene, count: int = PODS) -> None:
    """Bind many upper pods."""
    for number in range(count):
        scene.bind(f"p{number:03}", uid=f"u{number:03}")


def lower_pods(scene: Scene) -> int:
    """Return the number of lower pods."""
    return len([one for one in scene.lower.objects if one[0] == "pods"])


@pytest.mark.looptime
async def test_pods_over_quota_are_tried_one_at_a_time() -> None:
    """Pods with at least the requests of a refused one wait, and then the namespace tries once a minute."""
    async with running() as scene:
        quota = Quota(scene, pods=3)
        bind(scene)
        await asyncio.sleep(5)
        assert lower_pods(scene) == 3
        assert len(quota.asked) <= 8
        before = len(quota.asked)
        await asyncio.sleep(600)
        assert len(quota.asked) - before <= 13
        conditions = {one["type"]: one for one in scene.above("p050")["status"]["conditions"]}
        assert conditions["virtual-node.io/Admitted"]["reason"] == "ExceededQuota"


@pytest.mark.looptime
async def test_raised_quota_starts_all() -> None:
    """All have started within a minute after the namespace's next try."""
    async with running() as scene:
        quota = Quota(scene, pods=3)
        bind(scene)
        await asyncio.sleep(600)
        quota.pods = PODS
        await asyncio.sleep(LONGEST + 10)
        assert lower_pods(scene) == PODS


@pytest.mark.looptime
async def test_ended_pod_makes_room_for_another_soon() -> None:
    """The namespace tries again within two seconds, however long its back-off."""
    async with running() as scene:
        Quota(scene, pods=3)
        bind(scene, 20)
        await asyncio.sleep(1000)
        name = next(key for plural, key in scene.lower.objects if plural == "pods")
        scene.upper.remove("pods", name)
        await asyncio.sleep(1)
        scene.lower.remove("pods", name)
        await asyncio.sleep(2)
        assert lower_pods(scene) == 3
        assert scene.lower.find("pods", name) is None


@pytest.mark.looptime
@pytest.mark.parametrize("last", [0, 3])
@pytest.mark.parametrize("how", ["finished", "deleted", "marked", "created"])
async def test_ended_probe_pod_lets_another_one_try(how: str, last: int) -> None:
    """The upper pod may end, or its lower pod exist already: its namespace continues."""
    async with running() as scene:
        quota = Quota(scene, pods=0)
        bind(scene, 4)
        await asyncio.sleep(300)
        for number in {0, 1, 2, 3} - {last}:  # in at least one of the two cases the one to ask is among them
            name, uid = f"p{number:03}", f"u{number:03}"
            if how == "finished":
                scene.upper.change("pods", f"shop/{name}", status={"phase": "Failed"})
            elif how == "deleted":
                ending = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
                scene.upper.change(
                    "pods", f"shop/{name}", metadata={**ending, "finalizers": ["example.com/x"]}
                )
            elif how == "marked":
                mark = {names.ANNOTATION_LOWER_UID: f"x/{uid}"}
                scene.upper.change("pods", f"shop/{name}", metadata={"annotations": mark})
            else:
                scene.lower.put("pods", lower_pod(uid, name=name))
        quota.pods = 10
        await asyncio.sleep(2 * LONGEST)
        assert scene.is_below(f"p{last:03}")


@pytest.mark.looptime
async def test_pods_with_server_errors_do_not_block_others_of_their_namespace() -> None:
    """Pods with errors of a lower webhook lose their turns; the others start once the quota has room."""
    async with running() as scene:
        quota = Quota(scene, pods=0)
        bind(scene, 20)
        await asyncio.sleep(300)
        quota.pods = 20

        def fail(verb: str, plural: str, key: str) -> ApiError | None:
            if (verb, plural) == ("create", "pods") and int(key[-3:]) % 2:
                return Unavailable('failed calling webhook "x"', code=500)
            return quota._judge(verb, plural, key)

        scene.lower.fault = fail
        await asyncio.sleep(900)
        assert lower_pods(scene) == 10
        scene.lower.fault = quota._judge
        await asyncio.sleep(300)
        assert lower_pods(scene) == 20


@pytest.mark.looptime
async def test_other_refusals_are_bounded_too() -> None:
    """Pods that a webhook denies try five times a second together; a single one as often as before."""
    async with running() as scene:
        asked: list[float] = []

        def deny(verb: str, plural: str, _key: str) -> ApiError | None:
            if (verb, plural) != ("create", "pods"):
                return None
            asked.append(asyncio.get_running_loop().time())
            return Forbidden('admission webhook "x" denied the request', code=403)

        scene.lower.fault = deny
        scene.bind("single", uid="single")
        await asyncio.sleep(60)
        assert 8 <= len(asked) <= 12
        bind(scene)
        await asyncio.sleep(60)
        before = len(asked)
        seconds = size(60, 120)
        await asyncio.sleep(seconds)
        assert len(asked) - before <= seconds * 5 + 60
        scene.lower.fault = lambda *_: None
        await asyncio.sleep(120)
        assert lower_pods(scene) == PODS + 1


class TestGate:
    """The decision without IO."""

    def test_first_try_is_free(self) -> None:
        """A pod that has not been refused may be tried, whatever the state of others."""
        gate = QuotaGate()
        gate.refused("a", "ns", "small", 0.0)
        assert gate.pause("b", 0.0) == 0.0

    def test_refusal_applies_to_equal_pods_for_a_second(self) -> None:
        """A new pod with the same requests and namespace is predicted to be refused; others, and a later one, are tried."""
        gate = QuotaGate()
        gate.refused("a", "ns", "small", 0.0, why="exceeded quota: q")
        assert gate.foresee("b", "ns", "small", 0.9) == "exceeded quota: q"
        assert gate.follow("b", "ns", "small", 0.9) == []
        assert gate.pause("b", 0.9) == math.inf
        assert not gate.foresee("c", "ns", "large", 0.9)
        assert not gate.foresee("c", "other", "small", 0.9)
        assert not gate.foresee("c", "ns", "small", 1.0)
        assert gate.created("a", 5.0) == [("b", 0.0)]

    def test_one_pod_probes_with_back_off_and_others_take_turns(self) -> None:
        """The probe changes with each refusal, over all requests; its pauses double up to a minute."""
        gate = QuotaGate()
        assert gate.refused("large1", "ns", "large", 0.0) == [("large1", FIRST)]
        assert gate.refused("large2", "ns", "large", 0.0) == []
        assert gate.refused("small1", "ns", "small", 0.0) == []
        now, probe, tried, pauses = FIRST, "large1", [], []
        for _ in range(6):
            assert gate.pause(probe, now) == 0.0
            assert sum(gate.pause(uid, now) == 0.0 for uid in ("large1", "large2", "small1")) == 1
            tried.append(probe)
            demand = probe[:-1]
            [(probe, pause)] = gate.refused(probe, "ns", demand, now)
            now += pause
            pauses.append(pause)
        assert tried == ["large1", "small1", "large2", "small1", "large1", "small1"]
        assert pauses == [10.0, 20.0, 40.0, LONGEST, LONGEST, LONGEST]

    def test_success_releases_others_in_pairs(self) -> None:
        """Each created pod releases two others, up to 32 at a time."""
        gate = QuotaGate()
        for number in range(100):
            gate.refused(f"p{number}", "ns", "same", 0.0)
        released = gate.created("p0", 5.0)
        assert released == [("p1", 0.0), ("p2", 0.0)]
        assert gate.pause("p3", 5.0) == math.inf
        outstanding = [uid for uid, _ in released]
        most = 0
        while outstanding:
            outstanding += [uid for uid, _ in gate.created(outstanding.pop(0), 6.0)]
            most = max(most, len(outstanding))
        assert most == 32
        assert len(gate) == 0

    def test_turn_without_a_result_ends(self) -> None:
        """Ten seconds after its first try, not after its wake-up; for released pods and the probe."""
        gate = QuotaGate()
        for number in range(4):
            gate.refused(f"p{number}", "ns", "same", 0.0)
        assert gate.created("p0", 5.0) == [("p1", 0.0), ("p2", 0.0)]
        assert gate.ask("p1", 100.0) == []  # the queue was long
        assert gate.ask("p1", 105.0) == []
        assert gate.ask("p2", 106.0) == []
        assert gate.ask("p1", 111.0) == []  # p2 is still the probe
        assert gate.pause("p1", 111.0) == math.inf
        assert gate.ask("p2", 117.0) == [("p3", 0.0)]
        assert gate.pause("p2", 117.0) == math.inf
        assert gate.ask("p3", 117.0) == []
        assert gate.ask("p3", 127.0) == [("p1", 0.0)]
        assert gate.pause("p3", 127.0) == math.inf

    def test_ended_pod_advances_the_next_try(self) -> None:
        """At most once a second."""
        gate = QuotaGate()
        gate.refused("a", "ns", "x", 0.0)
        assert gate.freed("ns", 0.2) == [("a", 0.8)]
        assert gate.freed("ns", 0.3) == []
        assert gate.freed("other", 0.3) == []

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["refuse", "follow", "create", "forget", "free", "fail", "wait"]),
                st.integers(0, 7),
                st.integers(0, 1),
            ),
            max_size=60,
        )
    )
    def test_there_is_always_a_probe(self, steps: list[tuple[str, int, int]]) -> None:
        """While pods wait in a namespace, one of them may try within a minute, and was woken for it."""
        gate, now = QuotaGate(), 0.0
        waiting: dict[str, tuple[str, str]] = {}
        woken: set[str] = set()
        for what, number, where in steps:
            uid, name = f"p{number}", f"ns{number % 2}"
            demand = f"d{where}"
            if what == "wait":
                now += 7.0
                continue
            if what == "fail":
                wakes = gate.ask(uid, now)
            elif what == "free":
                wakes = gate.freed(name, now)
            elif what == "refuse":
                if gate.pause(uid, now):
                    continue  # it is not tried
                wakes = gate.refused(uid, name, demand, now, why="q")
                waiting[uid] = (name, demand)
                woken.discard(uid)
            elif what == "follow":
                if not gate.foresee(uid, name, demand, now):
                    continue
                wakes = gate.follow(uid, name, demand, now)
                waiting[uid] = (name, demand)
            elif what == "create":
                if gate.pause(uid, now):
                    continue
                wakes = gate.created(uid, now)
                waiting.pop(uid, None)
            else:
                wakes = gate.forget(uid, now)
                waiting.pop(uid, None)
            woken |= {woken_uid for woken_uid, _ in wakes}
            for name in {name for name, _ in waiting.values()}:
                ready = [
                    one
                    for one, (of, _) in waiting.items()
                    if of == name and one in woken and gate.pause(one, now + LONGEST) == 0.0
                ]
                assert ready
        assert len(gate) == len(waiting)
