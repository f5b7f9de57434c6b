"""Types of ``doctor``'s chain: a link is one condition for pods to run, and a rule judges it; faults are broken links."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from clusterset.model import names
from virtual_node.commands.common.installation import listed
from virtual_node.commands.doctor.facts import DoctorFacts, virtual_nodes, waiting
from virtual_node.examine import health as model
from virtual_node.examine.codes import Code
from virtual_node.examine.facts import known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import Health
from virtual_node.examine.objects import key, labels_of
from virtual_node.translate.pods.summary import status_word


class State(enum.StrEnum):
    """The state of a link."""

    OK = "ok"
    BROKEN = "broken"
    SKIPPED = "skipped"
    """Not judged, for example because an earlier link is broken or the component is not installed."""
    UNKNOWN = "unknown"
    """Its facts could not be read, so the link does not count as holding."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a rule."""

    state: State
    detail: str
    next: str = ""
    """The next step; empty: none."""


@dataclass(frozen=True, slots=True)
class Link:
    """A judged link as it is printed."""

    name: str
    """Stable name for programs."""
    title: str
    """Title for people."""
    state: State
    detail: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a link is judged."""

    name: str
    title: str
    examine: Callable[[DoctorFacts], Outcome]
    """Judges the link if there are no ``faults``."""
    needs: Sequence[str] = ()
    """Names of earlier links that must hold; otherwise this link cannot be judged."""
    reads: Sequence[str] = ()
    """Fields of ``DoctorFacts`` that the rule needs."""
    faults: Collection[Code] = ()
    """Codes of faults that break the link."""


WARNING = "warning: "
"""Begins the detail of a link that holds, but that needs attention."""
ok = partial(Outcome, State.OK)
broken = partial(Outcome, State.BROKEN)
skipped = partial(Outcome, State.SKIPPED)
unknown = partial(Outcome, State.UNKNOWN)


def health(facts: DoctorFacts) -> Health:
    """Return the health model's verdict on the doctor's facts."""
    unread = facts.unread
    bound = [pod for of_node in facts.bound.values() for pod in of_node]
    return model.health(
        known(
            facts.now,
            nodes=None if "nodes" in unread else virtual_nodes(facts),
            leases=None if "leases" in unread else facts.leases,
            bound=None if {"nodes", "bound"} & unread.keys() else bound,
            waiting=None if "pending" in unread else waiting(facts),
            components=None if "installation" in unread else facts.installation.pods,
            swarms=None if "swarms" in unread else facts.swarms,
            words=_words(facts),
        )
    )


def faults(facts: DoctorFacts, *codes: Code) -> list[Finding]:
    """Return the faults with these codes."""
    return [fault for fault in health(facts).faults if fault.code in codes]


def of_faults(found: list[Finding]) -> Outcome:
    """Return a broken link that lists the first faults; the next step is that of the first fault."""
    return broken(*listed(found))


def _words(facts: DoctorFacts) -> dict[str, str]:
    """Return the last message about each pod, by ``namespace/name``.

    A log line is preferred to a warning event, and an event to the status of the lower pod.
    """
    words = {}
    for event in facts.events:
        involved = event.get("involvedObject") or {}
        name = f"{involved.get('namespace')}/{involved.get('name')}"
        words[name] = f"{event.get('reason') or 'Warning'}: {event.get('message') or ''}".rstrip(": ")
    keys = {pod["metadata"].get("uid"): key(pod) for bound in facts.bound.values() for pod in bound}
    for below in (pod for lower in facts.lower for pod in lower.pods):
        name = keys.get(labels_of(below).get(names.LABEL_UPPER_UID), "")
        word, why = status_word(below)
        words.setdefault(name, f"{word}: {why}".rstrip(": "))
    words |= {name: lines[-1] for name, lines in facts.installation.logs.items() if lines}
    return words
