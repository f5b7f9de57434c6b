"""The acknowledgement's format, as workers write it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from swarm import handover
from swarm.handover import Acknowledgement, Holder, Ledger, Slot


def test_reads_acknowledgements_of_workers():
    """Also a long one, and one that is not JSON."""
    text = (
        '{"podUID":"u","session":"s","life":2,"version":7,"running":["a"],"failing":{"b":"exit code 1"},'
        '"draining":true,"stopped":["c"],"more":1}'
    )
    expected = handover.Acknowledgement(
        pod_uid="u", session="s", life=2, version=7, running=["a"], failing={"b": "exit code 1"},
        draining=True, stopped=["c"],
    )  # fmt: skip
    assert handover.acknowledgement(text) == expected
    assert expected.unreleased(["a", "b"]) == ["a"]
    long = handover.acknowledgement('{"podUID":"u","running":null,"runningCount":9,"stopped":["c"]}')
    assert long is not None
    assert long.unreleased(["a", "c"]) == ["a"]
    assert handover.acknowledgement("{") is None
    assert handover.acknowledgement('{"version": "x"}') is None


@pytest.mark.parametrize(
    "fields",
    [
        {"session": "s" * 129},
        {"life": 1 << 64},
        {"life": -1},
        {"version": 10**400},
        {"running": ["a" * 1025]},
        {"running": ["a"] * 40_001},
        {"stopped": "a"},
        {"fenceSeconds": -1},
        {"fenceSeconds": "1e999"},
    ],
)
def test_a_report_that_the_record_could_not_store_is_invalid(fields: dict[str, Any]):
    """It releases no job; a number above 64 bits would make every later record impossible to write."""
    assert handover.acknowledgement(json.dumps({"podUID": "u", "session": "s", **fields})) is None


def test_error_texts_of_workers_are_cut_and_printable():
    """They are shown in conditions, and so on terminals."""
    failing = {f"job-{number:03}\x1b[2J": "\x1b]0;x\x07" + "e" * 10_000 for number in range(1000)}
    found = handover.acknowledgement(json.dumps({"failing": failing}))
    assert found is not None
    assert len(found.failing) == 20
    assert all(job.isprintable() and text.isprintable() for job, text in found.failing.items())
    assert max(map(len, found.failing.values())) == 200


def test_invented_jobs_are_recorded_up_to_a_limit():
    """Jobs of the Swarm are recorded without a limit, because no other pod may start them before they stop."""
    jobs = [f"job-{number}" for number in range(20_000)]
    invented = [f"{number:064}" for number in range(20_000)]
    report = Acknowledgement(
        pod_uid="u", session="s", life=1, version=1, running=[*invented, *invented, *jobs]
    )
    found = handover.advance(
        Ledger(),
        slots={"w": Slot(name="w", index=0, jobs=jobs)},
        acknowledged={"u": report},
        gone=(),
        present={"u": "w"},
    ).holders["u"]
    assert found.stop == [*invented[:1024], *jobs]


def test_invented_jobs_of_many_reports_and_workers_share_one_limit():
    """Otherwise the record would grow until the API server refuses the Swarm's status."""
    ledger = Ledger()
    for number in range(6):
        reports = {
            uid: Acknowledgement(
                pod_uid=uid,
                session="s",
                life=1,
                version=0,
                running=[f"{uid}{number}-{job:060}" for job in range(1000)],
            )
            for uid in "uv"
        }
        ledger = handover.advance(
            ledger, slots={}, acknowledged=reports, gone=(), present={"u": "w", "v": "x"}
        )
    assert 65_000 < sum(len(job) for holder in ledger.holders.values() for job in holder.stop) <= 65_536


def _advanced(ledger: Ledger, fence: float, report: Acknowledgement | None, **more: Any) -> Ledger:
    """Return the next record of a Swarm with one pod; its settings are the fence time."""
    return handover.advance(
        ledger,
        slots={"w": Slot(name="w", index=0, uid="u", pod="w", jobs=["a"])},
        acknowledged={"u": report} if report else {},
        gone=(),
        present={"u": "w"},
        fence=fence,
        settings=str(fence),
        **more,
    )


def _report(**fields: Any) -> Acknowledgement:
    return Acknowledgement(**{"pod_uid": "u", "session": "s", "life": 1, "fence_seconds": 0, **fields})


def test_fence_time_of_a_session_is_the_longest_that_it_may_apply():
    """A worker acknowledges a changed time after it applied it, and perhaps never."""
    ledger = _advanced(_advanced(Ledger(), 8, None), 8, _report())
    assert ledger.holders["u"].fence == 8, "all shares of the session have this time"
    acknowledged = _report(version=ledger.holders["u"].version, fence_seconds=8, running=["a"])
    found = []
    for fence in (8, 60, 8, 0, 8):
        ledger = _advanced(ledger, fence, acknowledged)
        found.append(ledger.holders["u"].fence)
    assert found == [8, 60, 60, 0, 0]
    ledger = _advanced(
        ledger, 8, _report(version=ledger.holders["u"].version, fence_seconds=8, running=["a"])
    )
    assert ledger.holders["u"].fence == 8


def test_fence_time_is_known_only_of_workers_that_report_one():
    """A worker that was started before the time was set, one without fences, and one with ``Overlap``."""
    before = _advanced(_advanced(Ledger(), 0, None), 0, _report())
    assert _advanced(before, 8, _report()).holders["u"].fence == 0
    new = _advanced(Ledger(), 8, None)
    assert _advanced(new, 8, _report(fence_seconds=None)).holders["u"].fence == 0
    assert _advanced(new, 8, _report(), handover=handover.OVERLAP).holders["u"].fence == 0


def test_fence_time_set_later_is_known_of_workers_that_read_one_share():
    """With ``refresh: Restart``, ``version`` does not increase after the first share."""
    ledger = _advanced(_advanced(Ledger(), 0, _report()), 0, _report(version=1, running=["a"]))
    ledger = _advanced(ledger, 8, _report(version=1, running=["a"]))
    newest = ledger.holders["u"].version
    assert _advanced(ledger, 8, _report(version=1, seen=newest, fence_seconds=8)).holders["u"].fence == 8


def test_late_report_of_an_ended_session_has_no_effect():
    """Also after a restart of the controller; the next session starts the jobs."""
    late = _report(version=1, running=["a"], fence_seconds=8)
    ledger = _advanced(_advanced(Ledger(), 8, _report()), 8, late)
    assert ledger.holders["u"].start == ["a"]
    for _ in range(2):
        ledger = _advanced(ledger, 8, late, fenced={"u"})
        holder = ledger.holders["u"]
        assert (holder.session, holder.start, holder.stop, holder.silent) == ("", [], [], True)
    holder = _advanced(ledger, 8, _report(session="t", life=2)).holders["u"]
    assert (holder.session, holder.start, holder.silent) == ("t", ["a"], False)


@pytest.mark.parametrize("mode", [handover.EXCLUSIVE, handover.OVERLAP])
def test_the_time_of_a_transition_does_not_grow_with_the_square_of_the_jobs(mode: str):
    """20,000 jobs are revoked and acknowledged; a hostile report has 40,000 names."""
    jobs = [f"job-{number}" for number in range(20_000)]
    slots = {"w": Slot(name="w", index=0, uid="u", pod="w", jobs=jobs)}
    holder = Holder(pod="w", uid="u", session="s", life=1, version=1, start=jobs)
    ledger = Ledger(version=1, slots=slots, holders={"u": holder})
    names = [f"other-{number}" for number in range(40_000)]

    def advance(before: Ledger, running: list[str], **wanted: Slot) -> Ledger:
        report = Acknowledgement(pod_uid="u", session="s", life=1, version=9, running=running)
        return handover.advance(
            before, slots=wanted, acknowledged={"u": report}, gone=(), present={"u": "w"}, handover=mode
        )

    start = time.process_time()
    revoked = advance(ledger, jobs)
    assert len(revoked.holders["u"].stop) == 20_000
    assert advance(revoked, jobs, **slots).holders["u"].start == jobs
    assert not set(jobs) & set(advance(revoked, names).holders["u"].stop)
    assert time.process_time() - start < 5, "was 60 s"
