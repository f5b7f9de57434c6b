"""Parsing of specifications and lists; the schema."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime.objects import from_dict
from hack.chart.swarm import definition
from swarm import handover, spec
from swarm.controller.caches import shrink_pod, view
from swarm.controller.reconciler import due
from swarm.handover import Acknowledgement, Holder, Ledger, Slot
from swarm.planning import Pod
from tests.json_schema import validators


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("stream:a\nstream:b:new\n\n x \n", ["stream:a", "stream:b:new", "x"]),
        ("- stream:a\n- name: b\n  weight: 3\n- 007\n- yes\n", ["stream:a", "b", "007", "yes"]),
        ("jobs:\n  - stream:a\n  - b\nversion: 0\n", ["stream:a", "b"]),
        ("jobs:\n", []),
        ("", []),
        ("a: b\nc: d", ["a: b", "c: d"]),
        (
            "[::1]:80\n[::2]:80\n{x}.y\n*a\n@b\n-c\n#d\n",
            ["[::1]:80", "[::2]:80", "{x}.y", "*a", "@b", "-c", "#d"],
        ),
        ("\ufeffa\r\nb\r\n", ["a", "b"]),
        ("jobs:a\njobs:b", ["jobs:a", "jobs:b"]),
        ("# all lines\na\n#\nb\n", ["a", "b"]),
        ("# - a\n# - b\n", []),
        ("---\n- a\n---\n", ["a"]),
    ],
)
def test_lists_of_jobs(text, names):
    """Lines, YAML, and k8s-swarm's controller configuration."""
    assert [job.name for job in spec.read_list(text)] == names


@pytest.mark.parametrize(
    "text",
    [
        "jobs:\n - a\n- b\n",
        "jobs:\n\t- a\n",
        "- a\n- b: c: d\n",
        "job:\n- a\n",
        "job: [a, b]\n",
        "jobs: a\n",
        "a\n- b\n",
        "- a\n---\n- b\n",
        '["a",\n"b"\n',
        '["a", , "b"]\n',
        '{"jobs": ["a"]\n',
    ],
)
def test_yaml_with_an_error_is_not_read_as_names(text):
    """The last valid list stays in use, instead of jobs such as "jobs:" and "- a"."""
    with pytest.raises(ValueError, match=r"not YAML|not a list|neither a list|document"):
        spec.read_list(text)


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


@pytest.mark.parametrize(
    ("affinity", "message"),
    [
        (
            spec.Affinity({"matchLabels": {f"k{n}": "v" for n in range(33)}}),
            "workers: matchLabels has more than 32",
        ),
        (
            spec.Affinity({"matchExpressions": [{"key": "k", "operator": "Exists"}] * 33}),
            "workers: matchExpressions has more than 32",
        ),
        (spec.Affinity(clusters=tuple(f"vn-{n}" for n in range(257))), "clusters: more than 256"),
    ],
)
def test_lists_in_config_maps_have_the_limits_of_the_schema(affinity: spec.Affinity, message: str):
    """The API server does not check them."""
    with pytest.raises(ValueError, match=f"job a: affinity.{message}"):
        spec.jobs_of([spec.JobSpec("a", affinity=affinity)])


def test_different_affinities_are_limited():
    """The same affinity of many jobs counts once."""
    same = spec.Affinity({"matchLabels": {"zone": "a"}})
    others = [spec.Affinity({"matchLabels": {"zone": f"z{n}"}}) for n in range(spec.MOST_AFFINITIES - 1)]
    entries = [spec.JobSpec(f"same-{n}", affinity=same) for n in range(2000)]
    entries += [spec.JobSpec(f"other-{n}", affinity=one) for n, one in enumerate(others)]
    assert len(spec.jobs_of(entries)[1]) == len(entries)
    with pytest.raises(ValueError, match="job last: affinity: more than 500 different affinities"):
        spec.jobs_of([*entries, spec.JobSpec("last", affinity=spec.Affinity({"matchLabels": {"zone": "x"}}))])


def test_schema_is_structural_and_has_the_defaults_of_the_code():
    """The API server's defaults equal those of a specification without the field."""
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    validators().Draft4Validator.check_schema(schema)
    fields = schema["properties"]["spec"]["properties"]
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    workers = {"statefulSet": "w"}
    assert spec.parse({"workers": workers, **defaults}) == spec.parse({"workers": workers})
    assert len(defaults) == 7
    job = fields["jobs"]["items"]["properties"]
    given = {name: field["default"] for name, field in job.items() if "default" in field}
    parsed = spec.parse({"workers": workers, "jobs": [{"name": "a"}, {"name": "a", **given}]})
    assert parsed.jobs[0] == parsed.jobs[1]


_SELECTOR = {"matchLabels": {"a": "b"}}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("jobs", [{}, "a", ["a"]]),
        ("jobs.0.name", ["", 7, "x" * 1025, "a\x1b[31m", "a\nb", "a\x9b", None]),
        ("jobs.0.weight", [0, -1, 1_000_001, 1 << 70, 1.5, "1", "1Gi"]),
        ("jobs.0.qos", ["shared", "", 1]),
        ("jobs.0.affinity", [[], "a"]),
        ("jobs.0.affinity.clusters", ["a", [1], {}]),
        ("jobs.0.affinity.workers", [[], {"matchLabels": {"a": "b,c"}}]),
        ("jobsFrom", [[], "a"]),
        ("jobsFrom.configMap.name", ["a,metadata.name!=b", "../b", 1, "x" * 254]),
        ("jobsFrom.configMap.key", ["a/b", "", 1]),
        ("jobsFrom.selector", [{"matchLabels": {"a": "b,c"}}, {"matchExpressions": [{"key": "a", "operator": "="}]}]),
        ("workers", [[], "a", None]),
        ("workers.statefulSet", ["A", "a_b", "x" * 254, 1]),
        ("workers.deployment", ["../a", 1]),
        ("workers.selector", ["a=b", {"matchLabels": {"a": "x" * 64}}]),
        ("workers.httpPort", [-1, 65_536, "http", 1.5]),
        ("maxPerWorker", [-1, "1", 0.5]),
        ("strategy", ["sticky", 1]),
        ("handover", ["None", ""]),
        ("refresh", ["Always", True]),
        ("unreadyGraceSeconds", [-1, 86_401, "30s", 1 << 70]),
        ("maxUnavailable", [0, -1, "25%"]),
        ("fenceSeconds", [-1, 86_401, "10s"]),
        ("configMap", ["A", "../a", "x" * 254, 1]),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_schema_and_code(field, values):
    """The error of the code, which the Swarm's condition has, names the field."""
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    *path, last = field.split(".")
    for value in values:
        good = {
            "workers": {"selector": _SELECTOR},
            "jobs": [{"name": "a", "affinity": {"workers": _SELECTOR}}],
            "jobsFrom": {"configMap": {"name": "a"}},
        }
        del good["jobsFrom" if path[:1] == ["jobs"] or field == "jobs" else "jobs"]
        if field in {"workers.statefulSet", "workers.deployment"}:
            good["workers"] = {}
        if field == "jobsFrom.selector":
            good["jobsFrom"] = {}
        assert validators().Draft4Validator(schema).is_valid(good) or not all(good.values())
        place: Any = good
        for step in path:
            place = place[int(step) if step.isdigit() else step]
        place[last] = value
        assert not validators().Draft4Validator(schema).is_valid(good), value
        named = "affinity.workers" if last == "workers" and path else last
        with pytest.raises(ValueError, match=named):
            spec.jobs_of(spec.parse(good).jobs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": {}}, "spec.workers: set exactly one of statefulSet, deployment, selector"),
        ({"workers": {"statefulSet": "a", "deployment": "b"}}, "spec.workers: set exactly one"),
        ({"jobs": [{"name": "a"}], "jobsFrom": {"selector": {}}}, "set jobs or jobsFrom"),
        ({"jobsFrom": {}}, "spec.jobsFrom: set exactly one"),
        (
            {"workers": {"selector": {"matchLabels": {"a b": "c"}}}},
            "spec.workers.selector: 'a b' is not a label key",
        ),
        ({"jobs": [{"name": "a"}] * 20_001}, "<= 20000 - at `..jobs`"),
        ({"fenceSeconds": 4}, "spec.fenceSeconds must be 0 or at least 5"),
        ({"fenceSeconds": 5, "workers": {"selector": {}, "httpPort": 1}}, "spec.workers.httpPort"),
    ],
)
def test_fields_that_exclude_each_other(changes, message):
    """As the schema's rules, for API servers that have an older schema."""
    with pytest.raises(ValueError, match=message):
        spec.parse({"workers": {"selector": {}}, **changes})


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
        return handover.advance(
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
