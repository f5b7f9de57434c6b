"""Types of a Swarm's specification, from which ``hack/chart/swarm.py`` derives the schema, and their parsers.

``read_list`` parses lists of jobs in ConfigMaps and files. Users write them, so size and nesting are limited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from clusterset.model.names import SWARMS
from controller_runtime.apimachinery import matching
from swarm import planning
from swarm.assignment import Job
from swarm.planning import Matches, Pod

GROUP = SWARMS.group
FINALIZER = f"{GROUP}/handover"
JOBS_KEY = "jobs"
MOST_JOBS = 20_000
LONGEST_JOB = 1024
MOST_REQUIREMENTS = 32
"""Largest number of matchLabels, and of matchExpressions, of a selector."""
MOST_AFFINITIES = 500
"""Largest number of different affinities of a Swarm, because each of them is compared with each worker."""
_MOST_CLUSTERS = 256
LABEL_KEY = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
DATA_KEY = r"[-A-Za-z0-9_.]+"
JOB_NAME = r"[^\x00-\x1f\x7f-\x9f]*"
"""Control characters are refused, because names are printed on terminals."""

_Seconds = Annotated[int, Meta(ge=0, le=86_400)]
_Name = Annotated[str, Meta(max_length=253, pattern=rf"^({OBJECT_NAME})?\Z")]
_SetName = Annotated[_Name, Meta(extra_json_schema={"minLength": 1})]
"""Name of an object. The schema refuses an empty name; empty means here that the field is missing."""
_NodeName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 253})]


class Affinity(msgspec.Struct, rename="camel", frozen=True):
    """Restricts which workers may get a job."""

    workers: Annotated[dict[str, Any], Meta(description="Labels of pods.")] = {}
    clusters: Annotated[
        tuple[_NodeName, ...],
        Meta(
            description="Names of nodes. A virtual node represents its lower cluster.",
            extra_json_schema={"maxItems": _MOST_CLUSTERS},
        ),
    ] = ()
    """Empty: all."""


class JobSpec(msgspec.Struct, rename="camel", frozen=True):
    """One entry of ``spec.jobs``."""

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_JOB, pattern=rf"^{JOB_NAME}\Z")]
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    qos: Annotated[
        Literal["Shared", "Dedicated"],
        Meta(description="Dedicated: the job runs alone on its worker."),
    ] = "Shared"
    affinity: Affinity | None = None


class ConfigMapKey(msgspec.Struct, rename="camel", frozen=True):
    """Name and key of a ConfigMap with a list of jobs."""

    name: _SetName
    key: Annotated[str, Meta(max_length=253, pattern=rf"^{DATA_KEY}\Z")] = JOBS_KEY


class JobsFrom(msgspec.Struct, rename="camel", frozen=True):
    """Lists of jobs in ConfigMaps; exactly one of the fields is set."""

    config_map: ConfigMapKey | None = None
    selector: dict[str, Any] | None = None


class WorkersSpec(msgspec.Struct, rename="camel", frozen=True):
    """Selects the worker pods; exactly one of the first three fields is set."""

    stateful_set: _SetName = ""
    deployment: _SetName = ""
    selector: dict[str, Any] | None = None
    http_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Port of /internal/version. 0: workers acknowledge by their Lease.",
        ),
    ] = 0

    @property
    def kind(self) -> str:
        """Return the kind of the workers, a constant of ``swarm.slots``."""
        if self.stateful_set:
            return planning.STATEFUL_SET
        return planning.DEPLOYMENT if self.deployment else planning.PODS


class SwarmSpec(msgspec.Struct, rename="camel", frozen=True):
    """``spec`` of a Swarm, with the defaults of the schema."""

    workers: Annotated[WorkersSpec, Meta(description="The pods that run the jobs.")]
    jobs: Annotated[
        tuple[JobSpec, ...],
        Meta(max_length=MOST_JOBS, description="The jobs. The name identifies a job."),
    ] = ()
    jobs_from: Annotated[
        JobsFrom | None,
        Meta(description="ConfigMaps with lists of jobs: YAML, or one name per line."),
    ] = None
    max_per_worker: Annotated[
        int, Meta(ge=0, description="Largest number of jobs per worker. 0: no limit.")
    ] = 0
    strategy: Literal["Sticky", "Contiguous", "Rendezvous"] = "Sticky"
    handover: Literal["Exclusive", "Overlap"] = "Exclusive"
    refresh: Literal["Signal", "Restart"] = "Signal"
    unready_grace_seconds: Annotated[
        _Seconds, Meta(description="How long a worker that is not ready keeps its jobs.")
    ] = 30
    max_unavailable: Annotated[
        int,
        Meta(ge=1, description="With refresh Restart: workers that may restart at the same time."),
    ] = 1
    fence_seconds: Annotated[
        _Seconds,
        Meta(description="A worker that cannot acknowledge for this long stops its jobs. 0: never."),
    ] = 0
    config_map: Annotated[
        _Name, Meta(description="Name of a ConfigMap that is kept in the layout of k8s-swarm.")
    ] = ""


def parse(spec: Any) -> SwarmSpec:
    """Parse and validate a specification.

    Raises:
        ValueError: a field is wrong; the message names it.
    """
    try:
        parsed = msgspec.convert(spec, SwarmSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"spec: {error}") from None
    workers, source = parsed.workers, parsed.jobs_from
    if bool(workers.stateful_set) + bool(workers.deployment) + (workers.selector is not None) != 1:
        raise ValueError("spec.workers: set exactly one of statefulSet, deployment, selector")
    if parsed.jobs and source is not None:
        raise ValueError("spec: set jobs or jobsFrom, not both")
    if source is not None and (source.config_map is None) == (source.selector is None):
        raise ValueError("spec.jobsFrom: set exactly one of configMap, selector")
    if 0 < parsed.fence_seconds < 5:
        raise ValueError("spec.fenceSeconds must be 0 or at least 5")
    if parsed.fence_seconds and workers.http_port:
        raise ValueError("spec.fenceSeconds needs Leases: set spec.workers.httpPort to 0")
    _check_selector("spec.workers.selector", workers.selector)
    _check_selector("spec.jobsFrom.selector", source.selector if source else None)
    return parsed


def _check_selector(field: str, selector: Mapping[str, Any] | None) -> matching.Matcher:
    """Return a matcher for a label selector; None matches everything.

    Raises:
        ValueError: the schema or the API server would refuse the selector; the message names the field.
    """
    try:
        found = msgspec.convert(selector or {}, matching.LabelSelector)
        labels, expressions = found.match_labels or {}, found.match_expressions or []
        for part, count in (("matchLabels", len(labels)), ("matchExpressions", len(expressions))):
            if count > MOST_REQUIREMENTS:
                raise ValueError(f"{part} has more than {MOST_REQUIREMENTS} entries")
        matcher = matching.compile_selector(selector or {})
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    for expression in expressions:
        if (expression.operator in {"In", "NotIn"}) != bool(expression.values):
            raise ValueError(
                f"{field}: key {expression.key!r}: In and NotIn need values, other operators need none"
            )
    for key in [*labels, *(expression.key for expression in expressions)]:
        if not _is_label(LABEL_KEY, key, 317):
            raise ValueError(f"{field}: {key[:100]!r} is not a label key")
    for value in [
        *labels.values(),
        *(value for expression in expressions for value in expression.values or ()),
    ]:
        if not _is_label(LABEL_VALUE, value, 63):
            raise ValueError(f"{field}: {value[:100]!r} is not a label value")
    return matcher


def _is_label(pattern: str, text: str, longest: int) -> bool:
    return len(text) <= longest and re.fullmatch(pattern, text) is not None


def jobs_of(entries: Sequence[JobSpec]) -> tuple[list[Job], dict[str, Matches], list[str]]:
    """Return jobs with unique names, the affinities of jobs that have one, and duplicate names.

    It may take long, so it is called in a thread.

    Raises:
        ValueError: an affinity is wrong or there are too many different ones; the message names the job and field.
    """
    jobs: dict[str, Job] = {}
    affinities: dict[str, Matches] = {}
    compiled: dict[bytes, Matches] = {}
    repeated = []
    for entry in entries:
        if entry.name in jobs:
            repeated.append(entry.name)
            continue
        jobs[entry.name] = Job(entry.name, entry.weight, entry.qos == "Dedicated")
        if entry.affinity is not None:
            code = msgspec.json.encode(entry.affinity)
            if code not in compiled:
                if len(compiled) >= MOST_AFFINITIES:
                    raise ValueError(
                        f"{_where(entry)}: more than {MOST_AFFINITIES} different affinities in the Swarm. "
                        "Use the same affinity for several jobs, or divide the Swarm"
                    )
                compiled[code] = _matcher(entry)
            affinities[entry.name] = compiled[code]
    return list(jobs.values()), affinities, repeated


def _where(entry: JobSpec) -> str:
    return f"job {entry.name}: affinity"


def _matcher(entry: JobSpec) -> Matches:
    affinity = entry.affinity or Affinity()
    selects = _check_selector(f"{_where(entry)}.workers", affinity.workers)
    if len(affinity.clusters) > _MOST_CLUSTERS:
        raise ValueError(f"{_where(entry)}.clusters: more than {_MOST_CLUSTERS} entries")
    clusters = frozenset(affinity.clusters)

    def matches(pod: Pod) -> bool:
        return selects(pod.labels) and (not clusters or pod.node in clusters)

    return matches


_TOO_MANY = f"more than {MOST_JOBS:,} jobs"
_DEEPEST = 10
"""Levels of nested YAML. The deepest field of a job, a value of its selector, has 8."""


def read_list(text: str) -> list[JobSpec]:
    """Parse a list of jobs: YAML (names or objects, or k8s-swarm's ``jobs:``), or one name per line.

    Raises:
        ValueError: an entry is not a job, there are too many, or the text is YAML with an error. Its lines are then not
            names, because the workers would stop all jobs of the list and start such names.
    """
    text = text.removeprefix("\ufeff")  # editors on Windows
    try:
        found, has_aliases = _load(text)
    except yaml.YAMLError as error:
        if _is_yaml(text):
            raise ValueError(f"not YAML: {error}") from None
        found, has_aliases = text, False
    if isinstance(found, dict) and "jobs" in found:
        found = found["jobs"] or []
        if not isinstance(found, list):
            raise ValueError("jobs is not a list")
    if not isinstance(found, list):
        if _is_yaml(text) or (
            isinstance(found, dict) and not all(isinstance(value, str) for value in found.values())
        ):
            raise ValueError("neither a list nor a mapping with jobs")
        lines = [line.strip() for line in text.splitlines()]
        found, has_aliases = [line for line in lines if line and not _COMMENT.match(line)], False
    if has_aliases:
        raise ValueError("aliases of YAML are not supported")
    if len(found) > MOST_JOBS:
        raise ValueError(_TOO_MANY)
    return [_job(number, entry) for number, entry in enumerate(found, 1)]


_COMMENT = re.compile(r"#(\s|$)")
_YAML_LINE = re.compile(r"^[ \t]*(-[ \t\r\n]|-$|---[ \t\r]*$|jobs[ \t]*:([ \t\r]|$))", re.MULTILINE)


def _is_yaml(text: str) -> bool:
    """Report whether a text is not meant as one name per line: it has entries of a YAML list, or begins with a flow list."""
    if _YAML_LINE.search(text) is not None:
        return True
    first = text.lstrip().partition("\n")[0].rstrip(" \t\r")
    # A name may begin with a bracket, such as an IPv6 address with a port.
    return any(
        first.startswith(begin) and (end not in first or first.endswith(end)) for begin, end in ("[]", "{}")
    )


def _job(number: int, entry: Any) -> JobSpec:
    try:
        return msgspec.convert({"name": entry} if isinstance(entry, str) else entry, JobSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"entry {number} is not a job: {error}") from None


def _load(text: str) -> tuple[Any, bool]:
    """Return the only document of a text, and whether it has aliases.

    Scalars stay strings, because yes, 007 and 1e3 are valid names. ``yaml.load`` is not used, because it recurses, and
    because a small text can expand to gigabytes by aliases.
    """
    stack: list[list[Any]] = [[]]
    has_aliases = False
    for event in yaml.parse(text, Loader=_LOADER):
        if len(stack[-1]) > 2 * MOST_JOBS:  # keys and values of a mapping
            raise ValueError(_TOO_MANY)
        if isinstance(event, yaml.ScalarEvent):
            stack[-1].append(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(stack) > _DEEPEST:
                raise ValueError(f"YAML is nested deeper than {_DEEPEST} levels")
            stack.append([])
        elif isinstance(event, yaml.CollectionEndEvent):
            closed: Any = stack.pop()
            if isinstance(event, yaml.MappingEndEvent):
                keys = closed[::2]
                if not all(isinstance(key, str) for key in keys):
                    raise ValueError("a key of YAML is not a string")
                closed = dict(zip(keys, closed[1::2], strict=True))
            stack[-1].append(closed)
        elif isinstance(event, yaml.AliasEvent):
            has_aliases = True
            stack[-1].append("")
    documents = [
        document for document in stack[0] if document != ""
    ]  # a separator at the end begins an empty document
    if len(documents) > 1:
        raise yaml.YAMLError("more than one document")
    return (documents[0] if documents else None), has_aliases


_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
