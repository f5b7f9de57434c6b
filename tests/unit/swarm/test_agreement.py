"""Controller and worker read each other's messages."""

from __future__ import annotations

from swarm import share
from swarm.handover import ledger as ledgers
from swarm.handover.ledger import Acknowledgement, Holder, Ledger, Slot
from swarm.worker.jobs.state import Held, Job, Phase
from swarm.worker.protocol.acknowledgement import acknowledgement, compact
from swarm.worker.protocol.share import Applied, Entry, join, parse, parse_part


def test_controller_reads_every_field_of_an_acknowledgement():
    """A field with another name would get its default."""
    written = acknowledgement(
        Applied(7, wanted={}, fence_seconds=30),
        {"a": Held(Job("a"), Phase.WAITING, error="exit code 1")},
        pod_uid="u",
        session="s",
        life=4,
        draining=True,
        stopped=frozenset("b"),
    )
    assert ledgers.acknowledgement(compact(written)) == Acknowledgement(
        pod_uid="u",
        session="s",
        life=4,
        version=7,
        running=["a"],
        stopped=["b"],
        failing={"a": "exit code 1"},
        draining=True,
        fence_seconds=30,
    )


def test_worker_reads_every_field_of_a_share_in_parts():
    """With the checksum of the controller."""
    holder = Holder(pod="w-0", uid="u", session="s", version=9, start=["a"], stop=["b"])
    slot = Slot(name="w-0", index=0, jobs=["a", "c"], pod="w-0", uid="u")
    settings = share.Settings(
        swarm="x", handover="Exclusive", refresh="Restart", fence_seconds=30, weights={"a": 3}
    )
    texts = share.render(Ledger(slots={"w-0": slot}, holders={"u": holder}), holder, settings, limit=1001)
    first = parse(texts[0].encode(), share.checksum(texts[0]))
    others = [parse_part(text.encode(), share.checksum(text)) for text in texts[1:]]
    assert len(others) == 2
    read = join(first, others)
    assert read.jobs == (Entry("a", "start", weight=3), Entry("b", "stop"), Entry("c", "hold"))
    assert (read.version, read.session, read.pod_uid) == (9, "s", "u")
    assert (read.exclusive, read.restart, read.fence_seconds) == (True, True, 30)
