"""Controller and worker read each other's messages."""

from __future__ import annotations

import pytest

from swarm import handover, share
from swarm.assignment import Assignment
from swarm.handover import Acknowledgement, Holder, Ledger, Slot
from swarm.status import Findings, render
from swarm.worker.identity import Settings
from swarm.worker.jobs import Held, Job, Phase
from swarm.worker.protocol import Applied, Entry, Membership, compact, join, parse, parse_part


def test_controller_reads_every_field_of_an_acknowledgement():
    """A field with another name would get its default."""
    worker = Membership(Settings(pod_uid="u"))
    worker.session, worker.life, worker.draining = "s", 4, True
    worker.applied, worker.stopped = Applied(7, seen=9, wanted={}, fence_seconds=30), frozenset("b")
    written = worker.acknowledgement({"a": Held(Job("a"), Phase.WAITING, error="exit code 1")})
    assert handover.acknowledgement(compact(written)) == Acknowledgement(
        pod_uid="u",
        session="s",
        life=4,
        version=7,
        running=["a"],
        stopped=["b"],
        failing={"a": "exit code 1"},
        draining=True,
        fence_seconds=30,
        seen=9,
    )


@pytest.mark.parametrize("count", [None, 9 << 60])
def test_status_counts_running_jobs_of_a_list_that_was_too_long(count: int | None):
    """At most the granted ones, whatever the worker writes."""
    jobs = [f"{number:04}-{'x' * 250}" for number in range(1000)]
    worker = Membership(Settings(pod_uid="u"))
    worker.session, worker.life, worker.draining = "s", 1, False
    worker.applied, worker.stopped = Applied(1, wanted={}), frozenset()
    written = worker.acknowledgement({job: Held(Job(job), Phase.RUNNING) for job in jobs})
    assert written["running"] is None
    report = handover.acknowledgement(compact(written | ({"runningCount": count} if count else {})))
    assert report is not None
    holder = Holder(pod="w-0", uid="u", session="s", version=1, start=jobs)
    record = Ledger(slots={"w-0": Slot(name="w-0", index=0, jobs=jobs, uid="u")}, holders={"u": holder})
    status = render({}, record, Assignment(dict.fromkeys(jobs, "w-0")), Findings({"u": report}), now="")
    assert status["runningCount"] == 1000


def test_worker_reads_every_field_of_a_share_in_parts():
    """With the checksum of the controller."""
    holder = Holder(pod="w-0", uid="u", session="s", version=9, start=["a"], stop=["b"])
    slot = Slot(name="w-0", index=0, jobs=["a", "c"], pod="w-0", uid="u")
    settings = share.Settings(
        swarm="x", handover="Exclusive", refresh="Restart", fence_seconds=30, weights={"a": 3}
    )
    texts = share.render(slot, holder, settings, limit=1001)
    first = parse(texts[0].encode(), share.checksum(texts[0]))
    others = [parse_part(text.encode(), share.checksum(text)) for text in texts[1:]]
    assert len(others) == 2
    read = join(first, others)
    assert read.jobs == (Entry("a", "start", weight=3), Entry("b", "stop"), Entry("c", "hold"))
    assert (read.version, read.session, read.pod_uid) == (9, "s", "u")
    assert (read.exclusive, read.restart, read.fence_seconds) == (True, True, 30)
