"""Swarms with their lists of jobs and workers: parsing, assignment, status, and the shares of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from controller_runtime.apimachinery.translation_budget import TranslationBudget
from swarm import planning, share, spec, status
from swarm.assignment import CONTIGUOUS, STICKY
from swarm.handover import EXCLUSIVE, Acknowledgement, Ledger
from swarm.planning import Pod, Workers
from tests.unit.scaling.measure import Kind, Stage

_DIMENSIONS = {
    "jobs": 100,
    "name_bytes": 250,
    "dedicated_jobs": 60,
    "impossible_jobs": 60,
    "weighted_jobs": 60,
    "affinities": 15,
    "jobs_of_affinity": 60,
    "labels": 7,
    "values": 60,
    "clusters": 30,
    "pods": 60,
    "pod_labels": 30,
    "pod_label_bytes": 300,
    "list_lines": 100,
}


def _make(size: Mapping[str, int]) -> dict[str, Any]:
    def affinity(number: int) -> dict[str, Any]:
        many = number == 0
        values = ["x", *(f"v{value}" for value in range(size["values"] if many else 1))]
        labels = [{"key": "all", "operator": "In", "values": values}]
        labels += [
            {"key": f"absent{one}", "operator": "DoesNotExist"}
            for one in range(size["labels"] if many else 1)
        ]
        clusters = [f"n{cluster}" for cluster in range(size["clusters"])] if many else [f"n{number}", "n0"]
        return {"workers": {"matchExpressions": labels}, "clusters": clusters}

    jobs: list[dict[str, Any]] = [{"name": "j" * size["name_bytes"]}]
    jobs += [{"name": f"j{number}"} for number in range(size["jobs"])]
    jobs += [{"name": f"d{number}", "qos": "Dedicated"} for number in range(size["dedicated_jobs"])]
    nowhere = {"workers": {}, "clusters": ["nowhere"]}
    jobs += [
        {"name": f"i{number}", "qos": "Dedicated", "affinity": nowhere}
        for number in range(size["impossible_jobs"])
    ]
    jobs += [{"name": f"w{number}", "weight": number + 2} for number in range(size["weighted_jobs"])]
    jobs += [{"name": f"a{number}", "affinity": affinity(number)} for number in range(size["affinities"])]
    jobs += [{"name": f"e{number}", "affinity": affinity(1)} for number in range(size["jobs_of_affinity"])]
    pods = [
        {
            "name": f"p{number}",
            "uid": f"u{number}",
            "node": f"n{number % 10}",
            "labels": {"all": "x"}
            | (
                {f"l{one}": "x" for one in range(size["pod_labels"])}
                | {"large": "x" * size["pod_label_bytes"]}
                if number == 0
                else {}
            ),
        }
        for number in range(size["pods"])
    ]
    lines = [f"line{number}" for number in range(size["list_lines"])]
    return {"spec": {"workers": {"selector": {}}, "jobs": jobs}, "pods": pods, "lines": lines}


def _stages(source: Mapping[str, Any]) -> Iterable[Stage]:
    def listed(_budget: TranslationBudget) -> Any:
        text = "\n".join(source["lines"])
        return [
            len(spec.read_list(text)),
            len(spec.read_list("jobs: [" + ", ".join(source["lines"]) + "]")),
        ]

    def planned(strategy: str) -> tuple[Ledger, Any]:
        parsed = spec.parse(source["spec"])
        jobs, affinities, _ = spec.jobs_of(parsed.jobs)
        pods = [
            Pod(name=one["name"], uid=one["uid"], node=one["node"], ip="", ready=True, deleting=False, finished=False,
                labels=one["labels"])
            for one in source["pods"]
        ]  # fmt: skip
        wanted = planning.Wanted(
            jobs, affinities, Workers(planning.PODS), strategy=strategy, handover=EXCLUSIVE
        )
        first, _ = planning.advance(Ledger(), wanted, planning.Observed(pods, {}), now=0.0)
        reports = {
            pod.uid: Acknowledgement(pod_uid=pod.uid, session="s", life=1, version=first.version, running=[])
            for pod in pods
        }
        return planning.advance(first, wanted, planning.Observed(pods, reports), now=0.0)

    def rendered(strategy: str) -> Stage:
        def stage(_budget: TranslationBudget) -> Any:
            ledger, assignment = planned(strategy)
            whole = status.render({}, ledger, assignment, status.Findings({}), now="2026-01-01T00:00:00Z")
            by_uid = ledger.slots_by_uid()
            settings = share.Settings("s", EXCLUSIVE, "Signal")
            shares = [
                share.render(by_uid.get(holder.uid), holder, settings) for holder in ledger.holders.values()
            ]
            return msgspec.to_builtins([whole, shares])

        return stage

    return listed, rendered(STICKY), rendered(CONTIGUOUS)


SWARMS = Kind("Swarm", _DIMENSIONS, _make, _stages, fixed=512 * 1024)
