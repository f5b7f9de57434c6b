"""Judges the chain of links, in the order in which a pod passes them.

A link is skipped if it needs a broken link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from virtual_node.commands.doctor import admission, nodes, scheduling
from virtual_node.commands.doctor.facts import DoctorFacts
from virtual_node.commands.doctor.links import (
    WARNING,
    Link,
    Outcome,
    Rule,
    State,
    faults,
    of_faults,
    skipped,
    unknown,
)
from virtual_node.commands.doctor.nodes import RIGHTS

CHAIN: Sequence[Rule] = (
    *nodes.RULES, *admission.RULES, *scheduling.RULES, *nodes.LOWER_RULES, *scheduling.LAST_RULES,
)  # fmt: skip


def examine(facts: DoctorFacts) -> list[Link]:
    """Return every link in the order of the chain."""
    links: dict[str, Link] = {}
    for rule in CHAIN:
        outcome = _blocked(rule, links, facts) or _judged(rule, facts)
        links[rule.name] = Link(rule.name, rule.title, outcome.state, outcome.detail, outcome.next)
    return list(links.values())


def first_broken(links: Sequence[Link]) -> Link | None:
    """Return the link to repair first; None: no link is broken.

    Missing rights of the caller come last, because they only hide facts and do not stop pods.
    """
    broken = [link for link in links if link.state is State.BROKEN]
    return min(broken, key=lambda link: link.name == RIGHTS, default=None)


def holds(links: Sequence[Link]) -> bool:
    """Report whether no link is broken or unknown."""
    return all(link.state in {State.OK, State.SKIPPED} for link in links)


def sentence(links: Sequence[Link]) -> str:
    """Return the conclusion in one sentence."""
    if link := first_broken(links):
        return f"The broken link: {link.title}: {link.detail}; next: {link.next}"
    if unseen := [link.title for link in links if link.state is State.UNKNOWN]:
        return f"No broken link was found, but these could not be checked: {', '.join(unseen)}."
    if doubtful := [link.title for link in links if link.detail.startswith(WARNING)]:
        return f"Every link holds, with a warning: {', '.join(doubtful)}."
    return "Every link holds."


def _judged(rule: Rule, facts: DoctorFacts) -> Outcome:
    found = faults(facts, *rule.faults) if rule.faults else []
    return of_faults(found) if found else rule.examine(facts)


def _blocked(rule: Rule, links: Mapping[str, Link], facts: DoctorFacts) -> Outcome | None:
    for name in rule.needs:
        link = links[name]
        if link.state is State.BROKEN:
            return skipped(f"because of: {link.title}")
        if link.state in {State.SKIPPED, State.UNKNOWN}:
            return Outcome(link.state, link.detail)
    for name in rule.reads:
        if name in facts.unread:
            # A missing right may affect many links, so only the link about rights names the right.
            why = f"see {links[RIGHTS].title}" if facts.denied else facts.unread[name]
            return unknown(f"cannot be seen: {why}")
    return None
