"""Types of a Swarm's specification, as in its CustomResourceDefinition, and their parsers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import yaml

from controller_runtime.api import matching
from controller_runtime.resources import SWARMS
from swarm import slots
from swarm.assignment.model import Job
from swarm.planning import Matches
from swarm.slots import Pod

GROUP = SWARMS.group
FINALIZER = f"{GROUP}/handover"
JOBS_KEY = "jobs"


class Affinity(msgspec.Struct, rename="camel", frozen=True):
    """Restricts which workers may get a job."""

    workers: dict[str, Any] = {}
    """A label selector of pods."""
    clusters: tuple[str, ...] = ()
    """Names of nodes; empty: all."""


class JobSpec(msgspec.Struct, rename="camel", frozen=True):
    """One entry of ``spec.jobs``."""

    name: str
    weight: int = 1
    qos: Literal["Shared", "Dedicated"] = "Shared"
    affinity: Affinity | None = None


class ConfigMapKey(msgspec.Struct, rename="camel", frozen=True):
    """Key of a ConfigMap with a list of jobs."""

    name: str
    key: str = JOBS_KEY


class JobsFrom(msgspec.Struct, rename="camel", frozen=True):
    """Lists of jobs in ConfigMaps; exactly one of the fields is set."""

    config_map: ConfigMapKey | None = None
    selector: dict[str, Any] | None = None


class WorkersSpec(msgspec.Struct, rename="camel", frozen=True):
    """Selects the worker pods; exactly one of the first three fields is set."""

    stateful_set: str = ""
    deployment: str = ""
    selector: dict[str, Any] | None = None
    http_port: int = 0
    """Port for acknowledgements over HTTP; 0: workers acknowledge by their Lease."""

    @property
    def kind(self) -> str:
        """Return the kind of the workers, a constant of ``swarm.slots``."""
        if self.stateful_set:
            return slots.STATEFUL_SET
        return slots.DEPLOYMENT if self.deployment else slots.PODS


class SwarmSpec(msgspec.Struct, rename="camel", frozen=True):
    """``spec`` of a Swarm, with the defaults of the schema."""

    workers: WorkersSpec
    jobs: tuple[JobSpec, ...] = ()
    jobs_from: JobsFrom | None = None
    max_per_worker: int = 0
    strategy: Literal["Sticky", "Contiguous", "Rendezvous"] = "Sticky"
    handover: Literal["Exclusive", "Overlap"] = "Exclusive"
    refresh: Literal["Signal", "Restart"] = "Signal"
    unready_grace_seconds: int = 30
    max_unavailable: int = 1
    fence_seconds: int = 0
    config_map: str = ""
    """Name of a ConfigMap in the layout of k8s-swarm; empty: none."""


def parse(spec: Any) -> SwarmSpec:
    """Parse and validate a specification.

    Raises:
        ValueError: a field is wrong; the message names it.
    """
    try:
        return msgspec.convert(spec, SwarmSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"spec: {error}") from None


def read_list(text: str) -> list[JobSpec]:
    """Parse a list of jobs: YAML (names or objects, or k8s-swarm's ``jobs:``), or one name per line.

    Raises:
        ValueError: an entry is not a job.
    """
    try:
        # Every scalar stays a string, because yes, 007 and 1e3 are valid names.
        found = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes strings, lists and dicts only
    except yaml.YAMLError:
        found = text
    if isinstance(found, dict) and "jobs" in found:
        found = found["jobs"] or []
    if not isinstance(found, list):
        return [JobSpec(line.strip()) for line in text.splitlines() if line.strip()]
    try:
        return [
            JobSpec(str(one)) if not isinstance(one, dict) else msgspec.convert(one, JobSpec, strict=False)
            for one in found
        ]
    except msgspec.ValidationError as error:
        raise ValueError(f"an entry is not a job: {error}") from None


def jobs_of(entries: Sequence[JobSpec]) -> tuple[list[Job], dict[str, Matches], list[str]]:
    """Return jobs with unique names, the affinities of jobs that have one, and duplicate names.

    Raises:
        ValueError: a selector is wrong.
    """
    jobs: dict[str, Job] = {}
    affinities: dict[str, Matches] = {}
    compiled: dict[bytes, Matches] = {}
    repeated = []
    for entry in entries:
        if entry.name in jobs:
            repeated.append(entry.name)
            continue
        jobs[entry.name] = Job(entry.name, max(1, entry.weight), entry.qos == "Dedicated")
        if entry.affinity is not None:
            code = msgspec.json.encode(entry.affinity)
            if code not in compiled:
                compiled[code] = _matcher(entry.affinity)
            affinities[entry.name] = compiled[code]
    return list(jobs.values()), affinities, repeated


def _matcher(affinity: Affinity) -> Matches:
    selects = matching.compile_selector(affinity.workers)

    def matches(pod: Pod) -> bool:
        return selects(pod.labels) and (not affinity.clusters or pod.node in affinity.clusters)

    return matches
