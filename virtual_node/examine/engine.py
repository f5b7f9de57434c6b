"""The engine of the examination: one registry of rules, applied to a snapshot.

A rule judges known facts and does no IO. A tool selects rules by their level, reads the facts that they need, and prints the
findings. A rule that fails is a finding, and the other rules are applied.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from virtual_node.config import program
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.facts import BOUND, NODES, WAITING, WORDS
from virtual_node.examine.finding import SHOWN, Finding
from virtual_node.examine.objects import Json, cluster_of, one_line
from virtual_node.examine.pod_view import PodView, Stage
from virtual_node.examine.snapshot import Fact, Snapshot, View

if TYPE_CHECKING:
    from virtual_node.examine.mirrored import Outcome

Judge = TypeVar("Judge", bound=Callable[..., Any])
_ORDER = {code: number for number, code in enumerate(Code)}
_SEVERITIES = list(Severity)


class Level(enum.Enum):
    """What a rule is applied to."""

    INSTALLATION = "installation"
    """The snapshot. All tools apply these rules as far as their facts are known."""
    POD = "pod"
    """Each pod that is bound to a virtual node or waits for one; the rule gets the pod and the virtual nodes' names. All tools
    show the findings. They say what the message of the pod says, in ``evidence``, or else in ``cause``."""
    PATH = "path"
    """The snapshot. ``check``, ``doctor`` and ``inspect`` apply these rules where they have the facts. A lower cluster that makes
    a rule fail is left out."""
    CLUSTER = "cluster"
    """Each cluster; the rule gets the snapshot and the cluster. Applied like PATH."""
    LOWER = "lower"
    """Each lower cluster; like CLUSTER."""
    DETAIL = "detail"
    """One pod in depth, see ``pod_view.PodView``."""
    READING = "reading"
    """The snapshot; the rule reports what could not be read, so a second read does not replace its findings."""
    MIRRORED = "mirrored"
    """Each upper pod with its lower pod; the rule is a class, see ``mirrored.MirroredRule``."""


HEALTH = (Level.INSTALLATION, Level.POD)
"""Levels whose findings all tools show."""
WAY = (Level.PATH, Level.CLUSTER, Level.LOWER)
"""Levels of the rules that ``check``, ``doctor`` and ``inspect`` apply as far as they have the facts."""
_OF_ONE_POD = {Level.POD, Level.DETAIL}
"""Levels whose rules do not get the snapshot."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A judgement about facts."""

    codes: Sequence[Code]
    """The codes that it can find."""
    judge: Callable[..., Any]
    """Yields findings about its arguments, see ``Level``."""
    level: Level
    needs: Sequence[Fact[Any]] = ()
    """Facts without which it does not run."""
    uses: Sequence[Fact[Any]] = ()
    """Facts without which it finds less."""
    where: Sequence[Fact[Any]] = ()
    """Facts of a cluster without which it does not run for the cluster."""
    stages: Collection[Stage] = (Stage.ALIVE,)
    """Stages of the pods that a rule of level DETAIL is applied to."""
    is_fallback: bool = False
    """Whether it applies only to pods about which no other rule of its level finds anything."""

    @property
    def name(self) -> str:
        """Its name in the finding about its failure."""
        return str(getattr(self.judge, "name", self.judge.__name__))


RULES: list[Rule] = []
"""All rules of the modules that were imported, in their order; see ``virtual_node.examine.rules``."""


def rule(
    *codes: Code,
    needs: Sequence[Fact[Any]] = (),
    uses: Sequence[Fact[Any]] = (),
    where: Sequence[Fact[Any]] = (),
    level: Level = Level.INSTALLATION,
    stages: Collection[Stage] = (Stage.ALIVE,),
    is_fallback: bool = False,
) -> Callable[[Judge], Judge]:
    """Register a function, or a class of level MIRRORED, as a rule; it stays callable for tests."""

    def register(judge: Judge) -> Judge:
        RULES.append(Rule(codes, judge, level, needs, uses, where, stages, is_fallback))
        return judge

    return register


def detail(
    *codes: Code, stages: Collection[Stage] = (Stage.ALIVE,), is_fallback: bool = False
) -> Callable[[Judge], Judge]:
    """Register a function as a rule about one pod in depth."""
    return rule(*codes, level=Level.DETAIL, stages=stages, is_fallback=is_fallback)


@dataclass(slots=True)
class Examination:
    """The result of applying rules to a snapshot."""

    by_rule: dict[Callable[..., Any] | Level, list[Finding]] = field(default_factory=dict)
    """Findings by the rule's function, in the order of the rules; those of all rules about pods have the level as key."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Facts that the rules need and that are not known, by name, with the reason."""

    @property
    def findings(self) -> list[Finding]:
        """The findings, the most severe first, causes before their effects."""
        return ordered(chain.from_iterable(self.by_rule.values()))

    @property
    def doubtful(self) -> list[Rule]:
        """Rules with transient findings, which a second read must confirm."""
        return [one for one in RULES if any(each.transient for each in self.by_rule.get(one.judge, ()))]


def examine(
    snapshot: Snapshot,
    *,
    levels: Iterable[Level] = HEALTH,
    codes: AbstractSet[Code] | None = None,
    of_pods: Iterable[Finding] | None = None,
    first: Examination | None = None,
) -> Examination:
    """Return the findings of the rules of these levels about an installation.

    Args:
        snapshot: the known facts.
        levels: levels of the rules to apply.
        codes: only rules that can find one of these are applied; None: all.
        of_pods: findings of the rules about pods that the caller has already, see ``of_pod``; None: they are applied.
        first: the result of the first of two reads. Only its doubtful rules are applied again, and their transient
            findings count if both reads have them: even in a healthy system, a lower pod exists for a moment after
            its upper pod was deleted.
    """
    result, chosen = Examination(), set(levels)
    again = None if first is None else {id(item) for item in first.doubtful}
    rules = [
        each
        for each in RULES
        if each.level in chosen
        and (codes is None or not codes.isdisjoint(each.codes))
        and (again is None or id(each) in again or each.level is Level.READING)
    ]
    compared = _compared(snapshot, [each for each in rules if each.level is Level.MIRRORED])
    for each in rules:
        if each.level in _OF_ONE_POD:
            continue
        result.unknown |= _unknown(each, snapshot)
        if any(snapshot.upper.why(fact) for fact in each.needs):
            result.by_rule[each.judge] = []
        elif each.level is Level.MIRRORED:
            result.by_rule[each.judge] = _completed(each, compared[each.judge])
        else:
            apply = _of_each if each.level in {Level.CLUSTER, Level.LOWER} else _of_all
            result.by_rule[each.judge] = apply(each, snapshot)
    if Level.POD in chosen and first is None:
        result.unknown |= {fact.name: why for fact in (BOUND, WAITING) if (why := snapshot.upper.why(fact))}
        result.by_rule[Level.POD] = _of_pods(snapshot, of_pods)
    result.unknown |= snapshot.unknown
    if first is not None:
        for key, before in first.by_rule.items():
            if key in result.by_rule:
                result.by_rule[key] = confirmed(before, result.by_rule[key])
            else:
                result.by_rule[key] = before
    return result


def confirmed(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """Return the findings of a second read, without transient ones that the first read did not have."""
    before = {each.identity for each in first}
    return [each for each in second if not each.transient or each.identity in before]


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the most severe first, causes before their effects."""
    return sorted(findings, key=lambda one: (_SEVERITIES.index(one.severity), _ORDER[one.code]))


def of_pod(pod: Json, virtual_nodes: Iterable[str]) -> list[Finding]:
    """Return the findings about one pod, also those that do not count yet."""
    found = _of_level(Level.POD, pod, virtual_nodes)
    return found if _explains(found) else found + _of_level(Level.POD, pod, virtual_nodes, is_fallback=True)


def in_depth(view: PodView) -> list[Finding]:
    """Return the findings about one pod in depth, the verdict first, also those that do not count yet; never empty.

    Rules of level POD apply, too, except fallbacks, because the rules of level DETAIL explain more.
    """
    view = view.ordered()
    virtual = [node["metadata"]["name"] for node in view.virtual_nodes or ()]
    found = [*_of_level(Level.POD, view.pod, virtual), *_of_level(Level.DETAIL, view, stage=view.stage)]
    if not _explains(found):
        found += _of_level(Level.DETAIL, view, stage=view.stage, is_fallback=True)
    return sorted(found, key=lambda one: (one.rank, _ORDER[one.code]))


def of_all_pods(snapshot: Snapshot) -> list[Finding]:
    """Return the findings about each known pod, also those that do not count yet."""
    virtual = [node["metadata"]["name"] for node in snapshot.upper.get(NODES) or ()]
    # Not a list, because there may be very many packed pods.
    pods = chain(snapshot.upper.get(WAITING) or (), snapshot.upper.get(BOUND) or ())
    return [each for pod in pods for each in of_pod(pod, virtual)]


def _explains(found: Iterable[Finding]) -> bool:
    """Report whether a rule found something, other than that a rule fails."""
    return any(each.code is not Code.RULE_FAILED for each in found)


def _failed(found: Sequence[Finding]) -> bool:
    """Report whether a rule failed instead of finding something."""
    return bool(found) and not _explains(found)


def _of_level(
    level: Level, *given: Any, stage: Stage = Stage.ALIVE, is_fallback: bool = False
) -> list[Finding]:
    rules = _selected(tuple(RULES), level, stage, is_fallback=is_fallback)
    return [each for one in rules for each in _applied(one, *given)]


@functools.cache
def _selected(rules: tuple[Rule, ...], level: Level, stage: Stage, *, is_fallback: bool) -> Sequence[Rule]:
    """Return the rules to apply; cached, because they are applied to very many pods."""
    return [
        each
        for each in rules
        if each.level is level and each.is_fallback is is_fallback and stage in each.stages
    ]


def _applied(one: Rule, *given: Any, where: str = "") -> list[Finding]:
    """Return the findings of a rule, or its failure; ``where`` is the cluster that it judges."""
    try:
        return list(one.judge(*given))
    except Exception as error:  # noqa: BLE001 - objects may have any content
        return [_failure(one.name, error, where)]


def _of_all(one: Rule, snapshot: Snapshot) -> list[Finding]:
    """Return a rule's findings. Lower clusters for which it fails are left out, and these failures are findings."""
    found = _applied(one, snapshot)
    if not _failed(found):
        return found
    sound: list[View] = []
    failures: list[Finding] = []
    for lower in snapshot.lowers:
        alone = _applied(one, replace(snapshot, lowers=[lower]), where=lower.name)
        if _failed(alone):
            failures += alone
        else:
            sound.append(lower)
    rest = _applied(one, replace(snapshot, lowers=sound))
    return rest if _failed(rest) else [*failures, *rest]


def _of_each(one: Rule, snapshot: Snapshot) -> list[Finding]:
    """Return a rule's findings about each cluster, or its failure for one."""
    clusters = snapshot.clusters if one.level is Level.CLUSTER else snapshot.lowers
    known = (cluster for cluster in clusters if not any(map(cluster.why, one.where)))
    return [each for cluster in known for each in _applied(one, snapshot, cluster, where=cluster.name)]


def _unknown(one: Rule, snapshot: Snapshot) -> dict[str, str]:
    """Return why facts that a rule needs or uses are not known, by name; a tool need not have tried to read some."""
    upper, facts = snapshot.upper, (*one.needs, *one.uses)
    if one.level in WAY:
        return {fact.name: upper.unread[fact] for fact in facts if fact in upper.unread}
    return {fact.name: why for fact in facts if (why := upper.why(fact))}


def _compared(snapshot: Snapshot, rules: Sequence[Rule]) -> dict[Callable[..., Any], Outcome]:
    """Return the outcomes of rules about mirrored pods, by their class."""
    if not rules:
        return {}
    from virtual_node.examine.mirrored import outcomes  # noqa: PLC0415 - imports the translation of pods

    return outcomes([each.judge for each in rules], snapshot)


def _completed(one: Rule, outcome: Outcome) -> list[Finding]:
    """Return the findings of a rule about mirrored pods, without those about clusters for which it failed."""
    failures = [_failure(one.name, error, where) for where, error in outcome.failed.items()]
    return failures + [each for each in outcome.findings if each.place not in outcome.failed]


def _failure(rule: str, error: Exception, where: str) -> Finding:
    """Return the finding that a rule failed; ``where`` is the cluster for which it did; empty: for all."""
    about = f" about {where}" if where else ""
    cause = f"failed, so its findings{about} are missing: {type(error).__name__}: {error}"
    return Finding(
        code=Code.RULE_FAILED,
        kind="Rule",
        names=[rule],
        cause=one_line(cause),
        next_steps=["report this as a bug"],
    )


def _of_pods(snapshot: Snapshot, known: Iterable[Finding] | None) -> list[Finding]:
    """Return the grouped findings about pods, or that a pod is malformed."""
    try:
        return _grouped(snapshot, of_all_pods(snapshot) if known is None else known)
    except Exception as error:  # noqa: BLE001 - objects may have any content
        return [_failure("pods", error, "")]


def _grouped(snapshot: Snapshot, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings about pods that count now; those with the same code, node and reason become one."""
    clusters = {node["metadata"]["name"]: cluster_of(node) for node in snapshot.upper.get(NODES) or ()}
    groups: dict[tuple[Code, str, str], list[Finding]] = {}
    for each in findings:
        if each.counts_at(snapshot.now):
            groups.setdefault((each.code, each.node, each.reason or each.name), []).append(each)
    words = snapshot.upper.get(WORDS) or {}
    return [_group(same, clusters.get(node, ""), words) for (_, node, _), same in groups.items()]


def _group(same: list[Finding], cluster: str, words: Mapping[str, str]) -> Finding:
    same.sort(key=lambda one: one.name)
    first = same[0]
    # There is room for one line, and the message that proves a cause says more.
    cause, message = one_line(first.evidence[0] if first.evidence else first.cause), words.get(first.name)
    if message and first.code is Code.POD_NOT_STARTED:
        cause = one_line(f"{cause}: {message}")
    named = [each.name for each in same[:SHOWN]]
    return replace(
        first,
        names=named,
        cause=cause,
        evidence=(),
        next_steps=first.next_steps or [program.name(f"diagnose pod {first.name}")],
        cluster=cluster,
        count=len(same),
        since=None,
    )
