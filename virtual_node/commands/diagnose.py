"""``virtual-node diagnose TYPE/NAME``: explains why a pod, a workload's pods or a node do not work.

The examination (``virtual_node.examine``) judges; this reads, selects and prints.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from clusterset.model import names
from clusterset.model.overrides import recorded_changes
from clusterset.model.pod.conditions import claim_names
from clusterset.model.policy.rules import containers
from controller_runtime import resources
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import ConfigError
from controller_runtime.resources import Resource
from virtual_node.commands.common import connect, output
from virtual_node.commands.parsers import KINDS, full
from virtual_node.commands.parsers import diagnose as parser
from virtual_node.config import program
from virtual_node.examine import path_reading as _readers  # noqa: F401 - registers how facts are read
from virtual_node.examine import rules
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import Level, examine, in_depth
from virtual_node.examine.facts import BOUND, INSTALLED, KUBELETS, LEASES, NODES, WAITING, known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import add_reports
from virtual_node.examine.objects import Json, cluster_of, is_virtual, last_seen
from virtual_node.examine.pod_view import PodView
from virtual_node.examine.reader import (
    VIRTUAL_NODES,
    Reader,
    bounded,
    kubelet_answer,
    refusal,
    server_clock,
)
from virtual_node.examine.rules.workloads import healthy, healthy_node, of_node, of_workload
from virtual_node.examine.source import Source
from virtual_node.translate.base.ownership import mirrored_as

rules.load()
AGENT = "virtual-node-diagnose"


@dataclass(frozen=True, slots=True)
class DiagnoseResult:
    """The result of a diagnosis."""

    kind: str
    name: str
    """``namespace/name``, or a node's name."""
    findings: Sequence[Finding]
    pods: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    """For a workload: findings of each pod, by pod name."""
    phase: str = ""
    """For a pod: ``create``, ``run`` or ``delete``, see ``life``."""
    scores: Sequence[Score] = ()
    """For a pod: answers of the multi-scheduler's agents, printed with ``--explain``."""
    decision: str = ""
    """For a pod: message of its newest NodeScored event; empty: there is none."""
    overrides: Sequence[str] = ()
    """Changes by the lower cluster's overrides in the lower pod; for a workload, in its unhealthy pods."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 when nothing is wrong, otherwise 1.

    Raises:
        ConfigError: there is no such object, or reading it is forbidden; exit code 2.
    """
    options = parser().parse_args(argv)
    verdict, reader = asyncio.run(_examine(options))
    if options.output == "text":
        _print(verdict)
        if options.explain:
            _print_scores(verdict.scores, verdict.decision)
        output.note(reader.note())
    else:
        rows = {
            "kind": verdict.kind,
            "name": verdict.name,
            **({"phase": verdict.phase} if verdict.phase else {}),
            "findings": _rows(verdict.findings),
            "pods": [{"name": pod, "findings": _rows(found)} for pod, found in verdict.pods.items()],
            **({"scores": [asdict(each) for each in verdict.scores]} if options.explain else {}),
            **({"overrides": list(verdict.overrides)} if verdict.overrides else {}),
            "missingRights": reader.rights(),
        }
        output.data(rows, options.output)
    return 0 if all(map(_is_fine, verdict.findings)) else 1


async def _examine(options: argparse.Namespace) -> tuple[DiagnoseResult, Reader]:
    kind, given, name = target(options.kind, options.name)
    if options.explain and kind != "pod":
        raise ConfigError("--explain: only pods have scores; give pod/NAME")
    async with connect.upper(options, agent=AGENT) as client:
        reader = Reader(client)
        if kind == "node":
            return DiagnoseResult("Node", name, await _node(reader, name)), reader
        namespace = given or options.namespace or client.config.namespace or "default"
        resource = KINDS[kind]
        if kind == "pod":
            pods = [await reader.find(resource, name, namespace=namespace)]
        else:
            workload, pods = await pods_of(reader, resource, namespace, name)
        answers: list[Score] = []
        overridden: list[str] = []
        decisions: list[str] = []

        async def judged(pod: dict[str, Any]) -> Sequence[Finding]:
            if kind != "pod" and (fine := healthy(pod)):
                # A healthy pod is not read in detail, because a workload may have hundreds.
                return [fine]
            view = await read_pod(reader, pod)
            if options.client_kubeconfig:
                view = await _with_lower(view, options)
            decisions.append(decision(view.events))
            answers.extend(scores(view.events))
            overridden.extend(override_changes(view))
            return in_depth(view)

        verdicts = await bounded(map(judged, pods))
    key = f"{namespace}/{name}"
    if kind == "pod":
        result = DiagnoseResult(
            resource.kind, key, verdicts[0], {}, life(pods[0]), answers, decisions[0], overridden
        )
        return result, reader
    by_pod = {pod["metadata"]["name"]: found for pod, found in zip(pods, verdicts, strict=True)}
    findings = of_workload(resource.kind, workload, by_pod)
    distinct = list(dict.fromkeys(overridden))
    return DiagnoseResult(resource.kind, key, findings, by_pod, overrides=distinct), reader


async def _with_lower(view: PodView, options: argparse.Namespace) -> PodView:
    """Return the view with the lower pod; if the lower cluster cannot be read, note why and return the view."""
    try:
        async with connect.by_file(
            options.client_kubeconfig, agent=AGENT, timeout=options.request_timeout
        ) as client:
            return replace(view, lower=await read_lower(client, view.pod), is_lower_read=True)
    except ConfigError as error:
        output.note(str(error))
        return view


_OPERATORS = {"In": "in", "NotIn": "notin"}


async def pods_of(
    reader: Reader, resource: Resource, namespace: str, name: str
) -> tuple[Any, list[dict[str, Any]]]:
    """Return a workload and its pods, without pods that are being deleted.

    Raises:
        ConfigError: there is no such workload, or reading it or its pods is forbidden.
    """
    workload = await reader.find(resource, name, namespace=namespace)
    found = await reader.all(
        resources.PODS,
        namespace=namespace,
        label_selector=selector_text(workload["spec"].get("selector") or {}),
    )
    if found is None:
        raise refusal("list", resources.PODS, namespace=namespace)
    return workload, [pod.to_dict() for pod in found if not pod.metadata.deletion_timestamp]


def selector_text(selector: Mapping[str, Any]) -> str:
    """Return a LabelSelector in the syntax of the API's labelSelector parameter."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        match expression["operator"]:
            case "Exists":
                parts.append(expression["key"])
            case "DoesNotExist":
                parts.append(f"!{expression['key']}")
            case operator:
                parts.append(f"{expression['key']} {_OPERATORS[operator]} ({','.join(expression['values'])})")
    return ",".join(parts)


async def _node(reader: Reader, name: str) -> list[Finding]:
    """Return the findings about a virtual node, the most severe first; never empty.

    Raises:
        ConfigError: there is no such virtual node, or reading it is forbidden.
        ApiError: the cluster does not answer.
    """
    why = f"{program.name('doctor')} says why"
    node = await reader.find(resources.NODES, name, label_selector=VIRTUAL_NODES, otherwise=why)
    if not is_virtual(node):
        raise ConfigError(
            f"{name} is a node of the upper cluster itself, not a virtual one ({VIRTUAL_NODES})"
        )
    listed = await reader.all(resources.PODS, field_selector=f"spec.nodeName={name}") or ()
    bound = [pod.to_dict() for pod in listed]
    lease = await reader.get(resources.LEASES, name, namespace=names.NODE_LEASES)
    leases = None if lease is None and reader.missing else {name: lease} if lease else {}
    now = await server_clock(reader.client)
    snapshot = known(now, {NODES: [node], LEASES: leases, BOUND: (), WAITING: ()})
    snapshot.upper.put(KUBELETS, {name: await kubelet_answer(reader.client, node, bound)})
    await Source(snapshot.upper, reader).load([INSTALLED])
    add_reports(snapshot)
    result = [
        # All that a finding about the installation says, in its cause.
        replace(each, cause=f"{'; '.join([str(each), *each.evidence])}.", evidence=())
        for each in examine(snapshot, levels=(Level.INSTALLATION, Level.PATH)).findings
        if name == each.node or (not each.node and each.cluster == cluster_of(node))
    ]
    result += of_node(node, bound)
    return sorted(result, key=lambda one: one.rank) or [healthy_node(node, bound)]


def life(pod: Json) -> str:
    """Return the phase of a pod's life: ``create``, ``run`` or ``delete``."""
    if pod["metadata"].get("deletionTimestamp"):
        return "delete"
    return "create" if (pod.get("status") or {}).get("phase") in {None, "Pending"} else "run"


def _is_fine(one: Finding) -> bool:
    """Report whether a finding says that nothing is wrong."""
    return one.severity is Severity.INFO


def _title(one: Finding) -> str:
    """Return a finding as a sentence about the object that was named by the user."""
    return str(one) if one.code is Code.RULE_FAILED else one.cause


def _mark(one: Finding) -> str:
    if _is_fine(one):
        return output.GOOD
    return output.BAD if one.rank == 0 else output.DOUBTFUL


def _print(verdict: DiagnoseResult) -> None:
    output.conclusion(f"{verdict.kind.lower()} {verdict.name}")
    output.listing(
        [
            output.Entry(
                _mark(each),
                _title(each) if _is_fine(each) else f"{_title(each)} ({each.code})",
                each.evidence,
                each.next_steps,
            )
            for each in verdict.findings
        ]
    )
    if verdict.overrides:
        output.listing([output.Entry(output.NOTHING, "Overrides of the lower cluster:", verdict.overrides)])


def _print_scores(found: Sequence[Score], decision: str) -> None:
    rows = [
        (
            each.agent,
            each.node,
            "" if each.score is None else str(each.score),
            each.weight,
            f"rejected: {each.reason}" if each.score is None else "",
        )
        for each in found
    ]
    if rows:
        output.conclusion("scores of the multi-scheduler's agents")
    output.table(
        ("AGENT", "NODE", "SCORE", "WEIGHT", "REASON"),
        rows,
        empty=f"{decision} (event {names.EVENT_SCORED})"
        if decision
        else f"no event {names.EVENT_SCORED} about the pod: its scheduler has not called the multi-scheduler, the pod is not "
        "bound yet, or the event has expired",
    )


def _rows(findings: Sequence[Finding]) -> list[dict[str, object]]:
    return [
        {
            "code": each.code.value,
            "title": _title(each),
            "evidence": list(each.evidence),
            "nextSteps": list(each.next_steps),
        }
        for each in findings
    ]


_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def target(first: str, second: str | None) -> tuple[str, str, str]:
    """Parse ``pod/web``, ``pod web``, ``pod shop/web`` or ``pod/shop/web`` into kind, namespace and name.

    The namespace is empty if none is given.

    Raises:
        ConfigError: the words have none of these forms.
    """
    word, slash, rest = first.partition("/")
    if bool(slash) == (second is not None):
        raise ConfigError("diagnose: give TYPE/NAME or TYPE NAME, such as pod/web, deploy/web, node/vn-tokyo")
    kind = full(word)
    namespace, _, name = (second or rest).rpartition("/")
    for what, text in (("namespace", namespace), (kind, name)):
        if (text or what == kind) and not _NAME.fullmatch(text):
            raise ConfigError(f"{text!r} is not the name of a {what}")
    return kind, namespace, name


_AGENT = re.compile(
    r"(?P<agent>[^:]+): (?:(?P<scores>.*?) \(weight (?P<weight>[^)]+)\))?(?:; )?(?:rejected: (?P<rejected>.*))?"
)
# Lookbehind and limits keep the time of a search linear, because any program can write the message.
_SCORE = re.compile(r"(?<![^ ,])([^ ,]+) (\d+)(?=, | and |$)")
_REJECTION = re.compile(
    r"(?<![a-z0-9.-])([a-z0-9.-]{1,253}) \((.{0,1024}?)\)(?=, [a-z0-9.-]{1,253} \(|\. | and \d+ more|$)"
)


@dataclass(frozen=True, slots=True)
class Score:
    """One agent's answer about one virtual node."""

    agent: str
    weight: str
    """Weight of the agent's scores; empty: it has not scored."""
    node: str
    score: int | None
    """From 0 to 100; None: the agent rejected the node."""
    reason: str = ""
    """Why the agent rejected the node."""


def scores(events: Sequence[Mapping[str, Any]]) -> list[Score]:
    """Return the answers in the newest of a pod's NodeScored events, the oldest first; empty: no agent answered, or no event."""
    return [score for text in decision(events).split(". Agent ")[1:] for score in _answer(text)]


def decision(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the message of the newest NodeScored event in a pod's events, the oldest first; empty: there is no such event."""
    return next(
        (
            str(event.get("message"))
            for event in reversed(events)
            if event.get("reason") == names.EVENT_SCORED
        ),
        "",
    )


def _answer(text: str) -> Iterator[Score]:
    match = _AGENT.match(text)
    if match is None:
        return
    agent, weight = match["agent"], match["weight"] or ""
    for name, score in _SCORE.findall(match["scores"] or ""):
        yield Score(agent, weight, name, int(score))
    for name, reason in _REJECTION.findall(match["rejected"] or ""):
        yield Score(agent, weight, name, None, reason)


def override_changes(view: PodView) -> list[str]:
    """Return ``OVERRIDE: FIELD`` per changed field, and both values of images; empty if the lower pod was not read."""
    lower = view.lower or {}
    before, after = _images(view.pod), _images(lower)
    return [
        f"{name}: {field}"
        + (f": {before[field]} → {after[field]}" if field in before and field in after else "")
        for name, field in recorded_changes(lower)
    ]


def _images(pod: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{where}.image": str(container.get("image"))
        for where, container in containers(pod.get("spec") or {})
    }


_MOST_CLAIMS = 20


async def read_pod(reader: Reader, pod: dict[str, Any]) -> PodView:
    """Return everything about a pod in the upper cluster that the caller may read.

    Raises:
        ApiError: the upper cluster does not answer.
    """
    node_name = pod["spec"].get("nodeName", "")
    # Two gathers, because the types of asyncio.gather know at most six results.
    (virtual, node, lease), (events, claim_events, logs, now) = await asyncio.gather(
        asyncio.gather(
            reader.all(resources.NODES, label_selector=VIRTUAL_NODES),
            _nothing() if not node_name else reader.get(resources.NODES, node_name),
            _nothing()
            if not node_name
            else reader.get(resources.LEASES, node_name, namespace=names.NODE_LEASES),
        ),
        asyncio.gather(
            reader.events_about(pod),
            _claim_events(reader, pod),
            reader.previous_log(pod),
            server_clock(reader.client),
        ),
    )
    return PodView(
        pod=pod,
        node=node,
        lease=lease,
        lower=None,
        events=events,
        claim_events=claim_events,
        virtual_nodes=None if virtual is None else [each.to_dict() for each in virtual],
        now=now,
        logs=logs,
    )


async def read_lower(lower: Verbs, upper: Json) -> dict[str, Any] | None:
    """Return the lower pod of an upper pod; None: there is none.

    Raises:
        ApiError: the lower cluster does not answer, or forbids it.
    """
    metadata = upper["metadata"]
    selector = f"{names.LABEL_UPPER_UID}={metadata['uid']}"
    listed = (await lower.list(resources.PODS, label_selector=selector)).items
    # Users of the lower cluster can copy the label to other pods.
    made = mirrored_as((metadata.get("annotations") or {}).get(names.ANNOTATION_LOWER_UID), metadata["uid"])
    return next(
        (pod.to_dict() for pod in listed if pod.name == metadata["name"] and made in {"", pod.uid}), None
    )


async def _claim_events(reader: Reader, pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the warnings about the claims of a pending pod that are not bound, the oldest first."""
    found: list[Any] = []
    if (pod.get("status") or {}).get("phase") not in {None, "Pending"}:
        return found
    for name in claim_names(pod)[:_MOST_CLAIMS]:
        claim = await reader.get(
            resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=pod["metadata"]["namespace"]
        )
        if claim is not None and (claim.get("status") or {}).get("phase") != "Bound":
            found += [event for event in await reader.events_about(claim) if event.get("type") == "Warning"]
    return sorted(found, key=last_seen)


async def _nothing() -> None:
    return None
