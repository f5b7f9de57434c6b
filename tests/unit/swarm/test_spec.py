"""Parsing of specifications and lists; the schema."""

from __future__ import annotations

import jsonschema
import pytest

from controller_runtime.objects import from_dict
from swarm import crd, spec
from swarm.controller.restarts import due
from swarm.controller.worker_pods import shrink_pod, view
from swarm.handover import transition
from swarm.handover.ledger import Acknowledgement, Holder, Ledger, Slot
from swarm.slots import Pod


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("stream:a\nstream:b:new\n\n x \n", ["stream:a", "stream:b:new", "x"]),
        ("- stream:a\n- name: b\n  weight: 3\n- 007\n- yes\n", ["stream:a", "b", "007", "yes"]),
        ("jobs:\n  - stream:a\n  - b\nversion: 0\n", ["stream:a", "b"]),
        ("jobs:\n", []),
        ("", []),
        ("a: b\nc: d", ["a: b", "c: d"]),
    ],
)
def test_lists_of_jobs(text, names):
    """Lines, YAML, and k8s-swarm's controller configuration."""
    assert [job.name for job in spec.read_list(text)] == names


def test_invalid_entry_is_an_error():
    """It is not skipped."""
    with pytest.raises(ValueError, match="not a job"):
        spec.read_list("- {weight: 3}")


def test_duplicate_jobs_count_once():
    """The first one is used."""
    entries = [spec.JobSpec("a", weight=2), spec.JobSpec("b"), spec.JobSpec("a")]
    jobs, affinities, repeated = spec.jobs_of(entries)
    assert [(job.name, job.weight) for job in jobs] == [("a", 2), ("b", 1)]
    assert (affinities, repeated) == ({}, ["a"])


def test_affinity_requires_labels_and_clusters():
    """Both must match."""
    affinity = spec.Affinity({"matchLabels": {"zone": "a"}}, ("vn-1",))
    _, affinities, _ = spec.jobs_of([spec.JobSpec("a", affinity=affinity)])
    matches = affinities["a"]
    assert matches(Pod("w", "u", node="vn-1", labels={"zone": "a"}))
    assert not matches(Pod("w", "u", node="vn-2", labels={"zone": "a"}))
    assert not matches(Pod("w", "u", node="vn-1"))


def test_schema_is_structural_and_has_the_defaults_of_the_code():
    """The API server's defaults equal those of a specification without the field."""
    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.Draft4Validator.check_schema(schema)
    fields = schema["properties"]["spec"]["properties"]
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    workers = {"statefulSet": "w"}
    assert spec.parse({"workers": workers, **defaults}) == spec.parse({"workers": workers})
    assert len(defaults) == 7
    job = fields["jobs"]["items"]["properties"]
    given = {name: field["default"] for name, field in job.items() if "default" in field}
    parsed = spec.parse({"workers": workers, "jobs": [{"name": "a"}, {"name": "a", **given}]})
    assert parsed.jobs[0] == parsed.jobs[1]


def test_phase_set_by_garbage_collection_does_not_finish_a_pod():
    """Containers that are reported as running may still run."""
    status = {"phase": "Failed", "containerStatuses": [{"state": {"running": {}}}]}
    pod = from_dict({"metadata": {"name": "w"}, "status": status})
    assert not view(pod).finished
    assert not view(shrink_pod(pod)).finished
    ended = pod.with_fields(status={**status, "containerStatuses": [{"state": {"terminated": {}}}]})
    assert view(ended).finished
    assert view(shrink_pod(ended)).finished


def test_restarts_in_waves_with_losing_workers_first():
    """A restarting worker counts as unavailable until it has acknowledged."""
    record = Ledger(
        slots={f"w-{n}": Slot(name=f"w-{n}", index=n, uid=str(n), pod=f"w-{n}") for n in range(4)},
        holders={
            "0": Holder(pod="w-0", uid="0", session="s", version=5, start=["a", "b"]),
            "1": Holder(pod="w-1", uid="1", session="s", version=3, start=["c"]),
            "2": Holder(pod="w-2", uid="2", session="s", version=5, start=["d"], stop=["e"]),
            "3": Holder(pod="w-3", uid="3", session="s", version=5, start=["f"]),
        },
    )
    pods = [Pod(f"w-{n}", str(n), ready=True) for n in range(4)]
    running = {"0": ["a"], "1": ["c"], "2": ["d", "e"], "3": ["f"]}
    reports = {
        uid: Acknowledgement(pod_uid=uid, session="s", version=3, running=jobs)
        for uid, jobs in running.items()
    }
    assert due(record, reports, pods, 1) == ["2"]
    assert due(record, reports, pods, 5) == ["2", "0"]
    reports["3"] = Acknowledgement(pod_uid="3", session="s", version=0)
    assert due(record, reports, pods, 1) == []
    assert due(record, reports, pods, 2) == ["2"]


@pytest.mark.parametrize("predecessor", ["w-0", "of-a-deployment"])
def test_restarted_worker_gets_its_complete_share(predecessor: str):
    """Only with a slot, and after its predecessor holds no job; with a part of it, it would be restarted again."""
    slot = Slot(name="w-0", index=0, uid="new", pod="w-0", jobs=["a", "b"])
    record = Ledger(holders={"old": Holder(pod=predecessor, uid="old", session="s", version=1, start=["a"])})

    def advance(*gone: str, slots: dict[str, Slot], running: list[str] | None = None) -> Holder:
        report = Acknowledgement(pod_uid="new", session="t", life=1, running=running or [])
        return transition.advance(
            record,
            slots=slots,
            acknowledged={"new": report},
            gone=gone,
            present={"new": "w-0"},
            restarts=True,
        ).holders["new"]

    assert advance(slots={"w-0": slot}) == Holder(pod="w-0", uid="new", version=1)
    assert advance("old", slots={}).session == "", "it has no slot yet"
    assert advance("old", slots={}, running=["b"]).stop == ["b"], "another worker must wait for it"
    started = advance("old", slots={"w-0": slot})
    assert (started.session, started.start) == ("t", ["a", "b"])
