"""``virtual-node doctor``: finds the broken link of a running installation whose pods are all pending.

Shows the findings of the examination as the chain by which a pod gets from the upper API to a running container in a
lower cluster. A link is broken by a finding whose code names it. Changes nothing, because the only pod that it creates
is a server-side dry run.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery.readable import count, some
from controller_runtime.errors import ConfigError
from virtual_node.commands.common import connect, output
from virtual_node.commands.parsers import doctor as parser
from virtual_node.examine import facts, rules
from virtual_node.examine.clusters import VERSION
from virtual_node.examine.codes import Code, Link, Severity
from virtual_node.examine.components import INSTALLED_AS, LABEL_NAME
from virtual_node.examine.engine import HEALTH, RULES, WAY, Examination, Level, examine
from virtual_node.examine.finding import UPPER, Finding, by_cause, joined
from virtual_node.examine.health import add_reports
from virtual_node.examine.leases import active_lease
from virtual_node.examine.objects import involved, is_passing, key, labels_of, taint_text, taints
from virtual_node.examine.path_reading import BELOW, UPPER_FACTS, read_lower, read_upper
from virtual_node.examine.reader import DESCHEDULER_LEASE
from virtual_node.examine.rules.apis import form, is_forbidden, is_schedulable, ready_kubelets, upper_domain
from virtual_node.examine.rules.scheduling import room, waiting, waiting_for_virtual_nodes
from virtual_node.examine.rules.webhook import client_configs, end, ready_endpoints, tested
from virtual_node.examine.snapshot import Fact, Snapshot, View
from virtual_node.translate.pods.summary import status_word

rules.load()
_AGENT = "virtual-node-doctor"
_COLUMNS = ("LINK", "STATE", "DETAIL", "NEXT")
_WARNING = "warning: "
"""Begins the detail of a link that holds, but that needs attention."""
_NAMED = 3
"""Maximum number of causes in the detail of a link."""
_LONG = 40
"""A cause with more characters is printed for one link. Other links with this cause refer to that link."""


class State(enum.StrEnum):
    """The state of a link."""

    OK = "ok"
    BROKEN = "broken"
    SKIPPED = "skipped"
    """Not judged, for example because an earlier link is broken or the component is not installed."""
    UNKNOWN = "unknown"
    """Its facts could not be read, so the link does not count as holding."""


_MARKS = {
    State.OK: output.GOOD,
    State.BROKEN: output.BAD,
    State.SKIPPED: output.NOTHING,
    State.UNKNOWN: output.DOUBTFUL,
}
Outcome = tuple[State, str, str]
"""State, detail and next step."""


@dataclass(frozen=True, slots=True)
class Check:
    """How a link is judged. Findings whose code names the link break it."""

    fine: Callable[[Snapshot], str | Outcome]
    """Called if no finding breaks the link. Returns the detail of a link that is OK, otherwise state, detail and next step."""
    needs: Sequence[Link] = ()
    """Earlier links that must hold; otherwise this link cannot be judged."""
    reads: Sequence[Fact[Any]] = ()
    """Facts of the upper cluster without which this link is unknown."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged link as it is printed."""

    link: Link
    state: State
    detail: str
    next: str = ""

    @property
    def name(self) -> str:
        """Its stable name for programs."""
        return self.link.value

    @property
    def title(self) -> str:
        """Its title for people."""
        return self.link.heading


def judged(snapshot: Snapshot, *, ignored: Collection[str] = ()) -> list[Judged]:
    """Return the links that are not ignored, in the order of the chain, judged by the findings."""
    add_reports(snapshot)
    snapshot.upper.put(facts.WORDS, _words(snapshot))
    result = examine(snapshot, levels=(*HEALTH, *WAY))
    links: dict[Link, Judged] = {}
    printed = _Printed(ignored, {})
    for link in Link:
        links[link] = _blocked(link, links, snapshot, printed) or _judged(link, result, snapshot, printed)
    return [each for each in links.values() if each.name not in ignored]


def first_broken(links: Sequence[Judged]) -> Judged | None:
    """Return the link to repair first; None: no link is broken.

    Missing rights of the caller come last, because they only hide facts and do not stop pods.
    """
    broken = [each for each in links if each.state is State.BROKEN]
    return min(broken, key=lambda each: each.link is Link.RIGHTS, default=None)


def holds(links: Sequence[Judged]) -> bool:
    """Report whether no link is broken or unknown."""
    return all(link.state in {State.OK, State.SKIPPED} for link in links)


def sentence(links: Sequence[Judged]) -> str:
    """Return the conclusion. The report before it has the causes and the next steps."""
    if link := first_broken(links):
        others = sum(each.state is State.BROKEN for each in links) - 1
        more = f", and {count(others, 'more link is', 'more links are')} broken. Repair this link first"
        return f"The broken link: {link.title}{more if others else ''}."
    if unseen := [link.title for link in links if link.state is State.UNKNOWN]:
        return f"No broken link was found, but these could not be checked: {', '.join(unseen)}."
    if doubtful := [link.title for link in links if link.detail.startswith(_WARNING)]:
        return f"Every link holds, with a warning: {', '.join(doubtful)}."
    return "Every link holds."


@dataclass(frozen=True, slots=True)
class _Printed:
    """The long texts that the report contains."""

    ignored: Collection[str]
    """Names of the links that the report does not contain."""
    links: dict[str, Link]
    """By text: the first link with it."""

    def once(self, text: str, link: Link) -> str:
        """Return a text for the detail of a link, or a reference to the earlier link that has it."""
        if len(text) <= _LONG or link in self.ignored or (first := self.links.setdefault(text, link)) is link:
            return text
        return f"see {first.heading}"


def _blocked(
    link: Link, links: Mapping[Link, Judged], snapshot: Snapshot, printed: _Printed
) -> Judged | None:
    """Return the link if an earlier link or an unread fact prevents judging it."""
    check = CHECKS[link]
    for needed in (links[earlier] for earlier in check.needs):
        if needed.state is not State.OK:
            state = State.SKIPPED if needed.state is State.BROKEN else needed.state
            return Judged(link, state, f"because of: {needed.title}")
    for fact in check.reads:
        if why := snapshot.upper.unread.get(fact):
            # A missing right may affect many links, so only the link about rights names the right.
            is_denied = bool(snapshot.upper.get(facts.DENIED))
            why = f"see {Link.RIGHTS.heading}" if is_denied else printed.once(why, link)
            return Judged(link, State.UNKNOWN, f"cannot be seen: {why}")
    return None


def _judged(link: Link, result: Examination, snapshot: Snapshot, printed: _Printed) -> Judged:
    findings = [each for each in result.findings if each.code.link is link]
    if broken := [item for item in findings if item.severity is not Severity.INFO]:
        return Judged(link, State.BROKEN, _listed(broken, link, printed), broken[0].next_step)
    if failed := _failed(link, result):
        return Judged(link, State.UNKNOWN, printed.once(str(failed), link), failed.next_step)
    if findings:
        return Judged(link, State.OK, _WARNING + _listed(findings, link, printed), findings[0].next_step)
    fine = CHECKS[link].fine(snapshot)
    return Judged(link, *((State.OK, fine) if isinstance(fine, str) else fine))


def _failed(link: Link, result: Examination) -> Finding | None:
    """Return the failure of a rule that could have found a broken link."""
    of_link = (rule for rule in RULES if any(code.link is link for code in rule.codes))
    found = chain.from_iterable(
        result.by_rule.get(Level.POD if each.level is Level.POD else each.judge, ()) for each in of_link
    )
    return next((item for item in found if item.code is Code.RULE_FAILED), None)


def _listed(findings: Sequence[Finding], link: Link, printed: _Printed) -> str:
    """Return the first causes as text, each with all its objects, and the evidence for the first cause."""
    groups = by_cause(findings)
    shown = [_text(same, link, printed) for same in groups[:_NAMED]]
    more = [f"and {len(groups) - _NAMED} more"] if len(groups) > _NAMED else []
    evidence = [line for line in findings[0].evidence if not any(line in text for text in shown)]
    return "; ".join([*shown, *more, *(printed.once(line, link) for line in evidence)])


def _text(same: Sequence[Finding], link: Link, printed: _Printed) -> str:
    """Return one text for findings with the same cause, with their clusters unless the cause names them."""
    first = joined(same)
    places = dict.fromkeys(
        each.place for each in same if each.place != UPPER and each.place not in each.cause
    )
    text = str(replace(first, cause=printed.once(first.cause, link)))
    return f"{some(places)}: {text}" if places else text


def _words(snapshot: Snapshot) -> dict[str, str]:
    """Return the last message about each pod, by ``namespace/name``.

    A log line is preferred to a warning event, and an event to the status of the lower pod.
    """
    upper, words = snapshot.upper, {}
    for event in upper.get(facts.EVENTS) or ():
        words[involved(event)] = f"{event.get('reason') or 'Warning'}: {event.get('message') or ''}".rstrip(
            ": "
        )
    keys = {pod["metadata"].get("uid"): key(pod) for pod in upper.get(facts.BOUND) or ()}
    for below in (pod for lower in snapshot.lowers for pod in lower.get(BELOW) or ()):
        name = keys.get(labels_of(below).get(names.LABEL_UPPER_UID), "")
        word, why = status_word(below)
        words.setdefault(name, f"{word}: {why}".rstrip(": "))
    logs = installed.logs if (installed := upper.get(facts.INSTALLED)) else {}
    return words | {name: lines[-1] for name, lines in logs.items() if lines}


def _skipped(detail: str, step: str = "") -> Outcome:
    return State.SKIPPED, detail, step


def _upper_api(snapshot: Snapshot) -> str:
    return f"{snapshot.upper[facts.ANSWER].server} {snapshot.upper[VERSION]}"


def _components(snapshot: Snapshot) -> str | Outcome:
    if pods := snapshot.upper.get(facts.COMPONENTS):
        return f"{count(len(pods), 'pod')} of components, none fails"
    return _skipped(f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}: they may run elsewhere")


def _virtual_nodes(snapshot: Snapshot) -> str:
    nodes = snapshot.upper.get(facts.NODES) or ()
    return f"{len(nodes)}: {some(node['metadata']['name'] for node in nodes)}"


def _ready(snapshot: Snapshot) -> str | Outcome:
    if why := snapshot.upper.unread.get(facts.LEASES):
        return State.UNKNOWN, f"all are Ready; their Leases cannot be seen: {why}", ""
    return f"{len(snapshot.upper.get(facts.NODES) or ())} Ready, leases fresh"


def _taints(snapshot: Snapshot) -> str:
    every = (taint for node in snapshot.upper.get(facts.NODES) or () for taint in taints(node))
    seen = sorted({taint_text(each) for each in every if not is_passing(each)})
    return f"{some(seen) or 'none'}; every pod that waits for a virtual node tolerates them"


def _kubelet_api(snapshot: Snapshot) -> str | Outcome:
    probes = ready_kubelets(snapshot)
    if not probes:
        return _skipped("no virtual node is Ready")
    if all(is_forbidden(probe) for probe in probes.values()):
        return _skipped("you may not get nodes/proxy, or pods/log")
    if all(facts.PROXY_REFUSES in probe.text for probe in probes.values()):
        return _skipped(
            f"the API server does not proxy to loopback or link-local addresses, and {some(probes)} runs no "
            f"pod to test with"
        )
    return f"the API server reaches {some(name for name, probe in probes.items() if probe.ok)}"


def _webhook(snapshot: Snapshot) -> str | Outcome:
    webhook = snapshot.upper[facts.WEBHOOK]
    if not webhook.configurations:
        return _skipped(f"not installed; only pods labelled {names.LABEL_VIRTUAL_POD}=true need it")
    details = []
    for _, client in client_configs(webhook.configurations):
        if service := client.get("service"):
            ready = ready_endpoints(webhook, service)
            details.append(f"Service {service['namespace']}/{service['name']} has {ready} ready endpoints")
        elif url := client.get("url"):
            probe = webhook.urls.get(url)
            # A failure from here proves nothing, because perhaps only the API server can reach the URL.
            details.append(f"{url} {'answers' if probe and probe.code else 'does not answer from here'}")
    bundled = all(client.get("caBundle") for _, client in client_configs(webhook.configurations))
    trust = "its CA is valid" if bundled else "trusted by the system's CAs"
    address = f"; {some(details)}" if details else ""
    return f"{some(each['metadata']['name'] for each in webhook.configurations)}, {trust}{address}"


def _mutation(snapshot: Snapshot) -> str | Outcome:
    webhook = snapshot.upper[facts.WEBHOOK]
    if webhook.dry_run is not None and not webhook.dry_run.ok:
        why = f"{tested(webhook)} is refused, not by the webhook: {end(webhook.dry_run.text)}"
        return _skipped(why, "try another --namespace")
    return f"{tested(webhook)} gets its {names.ANNOTATION_CLUSTER_SELECTOR}"


def _scheduler(snapshot: Snapshot) -> str:
    if (lease := active_lease(snapshot.upper.get(facts.SCHEDULERS) or ())) is None:
        return f"it has no Lease {facts.SCHEDULER_LEASE} here, but no pod waits to be looked at"
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return f"Lease fresh, held by {holder.partition('_')[0]}"


def _extender(snapshot: Snapshot) -> str:
    number = len(waiting(snapshot))
    if not number:
        return "no pod waits to be scheduled"
    return f"{count(number, 'pod waits', 'pods wait')}, none for an extender"


def _capacity(snapshot: Snapshot) -> str | Outcome:
    if not (largest := room(snapshot)):
        return _skipped("no virtual node is Ready")
    number = len(waiting_for_virtual_nodes(snapshot))
    waits = f"{count(number, 'pod waits and fits', 'pods wait and fit')} by requests"
    return f"{waits if number else 'no pod waits for room'}; the largest virtual node has {largest} left"


def _lower_api(snapshot: Snapshot) -> str | Outcome:
    if not snapshot.lowers:
        return _skipped("no --client-kubeconfig given")
    return "; ".join(
        f"{lower.name}: {lower[VERSION]}, {sum(map(is_schedulable, lower.of('Node')))} of "
        f"{len(lower.of('Node'))} nodes schedulable"
        for lower in snapshot.lowers
    )


def _names(snapshot: Snapshot) -> str:
    return f"pods find others by {form(upper_domain(snapshot))}"


def _started(snapshot: Snapshot) -> str:
    phases = [(pod.get("status") or {}).get("phase") for pod in snapshot.upper.get(facts.BOUND) or ()]
    if starting := phases.count("Pending"):
        return f"{count(starting, 'pod')} starting, none stuck"
    return "every pod on a virtual node has started"


def _descheduler(snapshot: Snapshot) -> str | Outcome:
    if (lease := active_lease(snapshot.upper.get(facts.DESCHEDULERS) or ())) is None:
        return _skipped(f"not installed (no Lease {DESCHEDULER_LEASE})")
    return f"Lease fresh in namespace {lease['metadata'].get('namespace')}"


def _swarms(snapshot: Snapshot) -> str | Outcome:
    swarms = snapshot.upper.get(facts.SWARMS)
    return count(len(swarms), "Swarm") if swarms else _skipped("there are none")


def _always(detail: str) -> Callable[[Snapshot], str]:
    return lambda _snapshot: detail


_UPPER_API, _NODES = (Link.UPPER_API,), (Link.VIRTUAL_NODES,)
CHECKS: Mapping[Link, Check] = {
    Link.UPPER_API: Check(_upper_api),
    Link.RIGHTS: Check(_always("all rights that this command needs"), _UPPER_API),
    Link.COMPONENTS: Check(_components, _UPPER_API, [facts.COMPONENTS]),
    Link.VIRTUAL_NODES: Check(_virtual_nodes, _UPPER_API, [facts.NODES]),
    Link.CONFIGURATION: Check(_always("no virtual node reports a rejected one"), _NODES, [facts.LEASES]),
    Link.NODE_READY: Check(_ready, _NODES),
    Link.TAINTS: Check(_taints, _NODES, [facts.WAITING]),
    Link.KUBELET_API: Check(_kubelet_api, _NODES),
    Link.WEBHOOK: Check(_webhook, _UPPER_API, [facts.WEBHOOK]),
    Link.MUTATION: Check(_mutation, [Link.WEBHOOK]),
    Link.SCHEDULER: Check(_scheduler, _UPPER_API, [facts.WAITING]),
    Link.EXTENDER: Check(_extender, [Link.SCHEDULER]),
    Link.KNOWN_NODES: Check(_always("no pod waits because of an unknown virtual node"), [Link.EXTENDER]),
    Link.CAPACITY: Check(_capacity, _NODES, [facts.WAITING, facts.BOUND]),
    Link.SCHEDULED: Check(_always("no pod for virtual nodes waits for one"), _NODES, [facts.WAITING]),
    Link.LOWER_API: Check(_lower_api),
    Link.NAMES: Check(_names, [Link.LOWER_API]),
    Link.LOWER_CERTIFICATES: Check(_always("none is reported to expire soon"), _NODES, [facts.LEASES]),
    Link.LOWER_VERDICT: Check(_started, _NODES, [facts.BOUND]),
    Link.API_OF_PODS: Check(_always("no virtual node reports that pods cannot use the upper API server"), _UPPER_API, [facts.EVENTS]),
    Link.DESCHEDULER: Check(_descheduler, _UPPER_API, [facts.DESCHEDULERS]),
    Link.SWARMS: Check(_swarms, _UPPER_API, [facts.SWARMS]),
}  # fmt: skip
"""How each link is judged."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 when all links hold, 1 when a link is broken or could not be seen.

    Raises:
        ConfigError: the upper cluster's kubeconfig cannot be used; exit code 2.
    """
    options = parser().parse_args(argv)
    links = judged(asyncio.run(_read(options)), ignored=options.ignore)
    broken = first_broken(links)
    if options.output == "table" and options.quiet:
        _print_brief(links)
    elif options.output == "table":
        _print(links, headers=not options.no_headers)
    else:
        rows = [
            {"name": each.name, "state": each.state.value, "detail": each.detail, "next": each.next}
            for each in links
        ]
        output.data({"brokenLink": broken.name if broken else None, "links": rows}, options.output)
    return 0 if holds(links) else 1


async def _read(options: argparse.Namespace) -> Snapshot:
    files, upper = options.client_kubeconfig, View(UPPER)
    now, lowers = await asyncio.gather(
        _read_upper(options, upper), asyncio.gather(*(_read_lower(file, options) for file in files))
    )
    return Snapshot(now, upper=upper, lowers=lowers)


async def _read_upper(options: argparse.Namespace, view: View) -> datetime:
    """Read the upper cluster; return the time by its clock, or by this machine's if it does not answer."""
    wanted = (*UPPER_FACTS, facts.DOMAIN) if options.client_kubeconfig else UPPER_FACTS
    now = datetime.now(UTC)
    async with connect.answering(view), connect.upper(options, agent=_AGENT) as client:
        now = await read_upper(client, view, wanted, namespace=options.namespace)
    if not view[facts.ANSWER].usable:
        raise ConfigError(view[facts.ANSWER].error)
    return now


async def _read_lower(file: str, options: argparse.Namespace) -> View:
    """Return what was read of a lower cluster; an unusable kubeconfig does not stop the other clusters."""
    view, timeout = View(file), options.request_timeout
    async with connect.answering(view), connect.by_file(file, agent=_AGENT, timeout=timeout) as client:
        await read_lower(client, view)
    return view


def _print(links: Sequence[Judged], *, headers: bool) -> None:
    lines = [
        output.Line(_MARKS[each.state], each.title, (each.title, each.state.value, each.detail, each.next))
        for each in links
    ]
    output.report(_COLUMNS, lines, headers=headers)
    output.conclusion(sentence(links))


def _print_brief(links: Sequence[Judged]) -> None:
    wrong = [each for each in links if each.state not in {State.OK, State.SKIPPED}]
    output.brief([(item.title, item.state.value, item.detail, item.next) for item in wrong])
    output.conclusion(sentence(links))
