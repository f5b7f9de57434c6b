"""The engine of the examination: one registry of rules, applied to a snapshot.

A rule judges known facts and does no IO. A tool selects rules by their level, reads the facts that they need, and prints the
findings. A rule that fails is a finding, and the other rules are applied.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.facts import BOUND, NODES, WAITING, WORDS
from virtual_node.examine.finding import SHOWN, Finding, Findings
from virtual_node.examine.objects import Json, cluster_of, one_line
from virtual_node.examine.snapshot import Fact, Snapshot

_ORDER = {code: number for number, code in enumerate(Code)}
_SEVERITIES = list(Severity)


class Level(enum.Enum):
    """What a rule is applied to."""

    INSTALLATION = "installation"
    """The snapshot. All tools apply these rules as far as their facts are known."""
    POD = "pod"
    """Each pod that is bound to a virtual node or waits for one; the rule gets the pod and the virtual nodes' names."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A judgement about facts."""

    codes: Sequence[Code]
    """The codes that it can find."""
    judge: Callable[..., Findings]
    level: Level
    needs: Sequence[Fact[Any]] = ()
    """Facts without which it does not run."""
    uses: Sequence[Fact[Any]] = ()
    """Facts without which it finds less."""

    @property
    def name(self) -> str:
        """Its name in the finding about its failure."""
        return self.judge.__name__


RULES: list[Rule] = []
"""All rules of the modules that were imported, in their order; ``virtual_node.examine.rules`` imports all."""


def rule(
    *codes: Code,
    needs: Sequence[Fact[Any]] = (),
    uses: Sequence[Fact[Any]] = (),
    level: Level = Level.INSTALLATION,
) -> Callable[[Callable[..., Findings]], Callable[..., Findings]]:
    """Register a function as a rule; it stays callable for tests."""

    def register(judge: Callable[..., Findings]) -> Callable[..., Findings]:
        RULES.append(Rule(codes, judge, level, needs, uses))
        return judge

    return register


@dataclass(slots=True)
class Examination:
    """The result of applying rules to a snapshot."""

    findings: list[Finding] = field(default_factory=list)
    """Causes before their effects."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Facts that the rules need and that are not known, by name, with the reason."""


def examine(
    snapshot: Snapshot,
    *,
    levels: Iterable[Level] = (Level.INSTALLATION, Level.POD),
    of_pods: Iterable[Finding] | None = None,
) -> Examination:
    """Return the findings of the rules of these levels about an installation.

    Args:
        snapshot: the known facts.
        levels: levels of the rules to apply.
        of_pods: findings of the rules about pods that the caller has already, see ``of_pod``; None: they are applied.
    """
    result, levels = Examination(), set(levels)
    for one in (rule for rule in RULES if rule.level in levels and rule.level is not Level.POD):
        unknown = {fact.name: why for fact in (*one.needs, *one.uses) if (why := snapshot.upper.why(fact))}
        result.unknown |= unknown
        if not any(fact.name in unknown for fact in one.needs):
            result.findings += _applied(one, snapshot)
    if Level.POD in levels:
        result.unknown |= {fact.name: why for fact in (BOUND, WAITING) if (why := snapshot.upper.why(fact))}
        found = of_all_pods(snapshot) if of_pods is None else of_pods
        result.findings += _grouped(snapshot, found)
    result.unknown |= snapshot.unknown
    result.findings = ordered(result.findings)
    return result


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the most severe first, causes before their effects."""
    return sorted(findings, key=lambda one: (_SEVERITIES.index(one.severity), _ORDER[one.code]))


def of_pod(pod: Json, virtual_nodes: Iterable[str]) -> list[Finding]:
    """Return the findings about one pod, also those that do not count yet."""
    rules = (one for one in RULES if one.level is Level.POD)
    return [finding for one in rules for finding in _applied(one, pod, virtual_nodes)]


def of_all_pods(snapshot: Snapshot) -> list[Finding]:
    """Return the findings about each known pod, also those that do not count yet."""
    virtual = [node["metadata"]["name"] for node in snapshot.upper.get(NODES) or ()]
    pods = (*(snapshot.upper.get(WAITING) or ()), *(snapshot.upper.get(BOUND) or ()))
    return [finding for pod in pods for finding in of_pod(pod, virtual)]


def _applied(one: Rule, *given: Any) -> list[Finding]:
    try:
        return list(one.judge(*given))
    except Exception as error:  # noqa: BLE001 - objects may have any content
        cause = f"failed, so its findings are missing: {type(error).__name__}: {error}"
        step = "report this as a bug"
        return [
            Finding(
                code=Code.RULE_FAILED, kind="Rule", names=[one.name], cause=one_line(cause), next_steps=[step]
            )
        ]


def _grouped(snapshot: Snapshot, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings about pods that count now; those with the same code, node and reason become one."""
    clusters = {node["metadata"]["name"]: cluster_of(node) for node in snapshot.upper.get(NODES) or ()}
    groups: dict[tuple[Code, str, str], list[Finding]] = {}
    for one in findings:
        if one.counts_at(snapshot.now):
            groups.setdefault((one.code, one.node, one.reason or one.name), []).append(one)
    words = snapshot.upper.get(WORDS) or {}
    return [_group(same, clusters.get(node, ""), words) for (_, node, _), same in groups.items()]


def _group(same: list[Finding], cluster: str, words: Mapping[str, str]) -> Finding:
    same.sort(key=lambda one: one.name)
    first = same[0]
    cause, message = first.cause, words.get(first.name)
    if message and first.code is Code.POD_NOT_STARTED:
        cause = one_line(f"{cause}: {message}")
    named = [one.name for one in same[:SHOWN]]
    return replace(first, names=named, cause=cause, cluster=cluster, count=len(same), since=None)
