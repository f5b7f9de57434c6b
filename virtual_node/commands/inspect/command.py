"""``virtual-node inspect``: reports leaks, drift, skew, expiry and capacity of all clusters, for people and CI.

Changes nothing except the history.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from clusterset.config import Cluster
from clusterset.following import connection
from controller_runtime.apimachinery import timestamps
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_flag, parse_duration
from virtual_node.certificates import expiries
from virtual_node.certificates.expiry import UPPER, ExpiryLimits, span
from virtual_node.commands.common import connect, output, profiles
from virtual_node.commands.inspect import history, reading
from virtual_node.commands.inspect.facts import ERROR, INFO, WARNING, InspectFacts, InspectFinding, Subject
from virtual_node.commands.inspect.history import identity
from virtual_node.commands.inspect.rules import registry
from virtual_node.config import command_line, program
from virtual_node.config.types import Config
from virtual_node.examine.inspections import FIXED, PERSISTING, UNKNOWN, Inspection, RecordedFinding

_COLUMNS = ("SEVERITY", "CLUSTER", "CHECK", "KIND", "OBJECT", "MESSAGE", "NEXT")
_MARKS = {ERROR: output.BAD, WARNING: output.DOUBTFUL, INFO: output.NOTHING}
_Recorded = Mapping[tuple[str, str, str, str], RecordedFinding]


def show(
    facts: InspectFacts,
    findings: Sequence[InspectFinding],
    history: Inspection | None,
    *,
    form: str,
    headers: bool,
) -> None:
    """Print the findings and the summary.

    Args:
        facts: what was read.
        findings: the findings to print.
        history: the history with this run; None: without a history.
        form: ``table``, ``json`` or ``yaml``.
        headers: whether a table has headings.
    """
    summary = registry.summary(facts, findings)
    recorded = {one.identity: one for one in history.findings} if history else {}
    if history:
        summary += f"; {history.runs[-1].new} new, {history.runs[-1].fixed} fixed"
    if form == "table":
        _table(facts, findings, recorded, has_history=history is not None, headers=headers)
        output.conclusion(summary)
        return
    data: dict[str, Any] = {
        "clusters": [
            {
                "name": cluster.name,
                "version": cluster.version,
                "error": cluster.error,
                "replica": facts.replica(cluster),
            }
            for cluster in (facts.upper, *facts.lowers)
        ],
        "pods": registry.pod_count(facts),
        "findings": [_row(finding, recorded.get(identity(finding))) for finding in findings],
        "summary": summary,
    }
    if history:
        data |= {
            state: [msgspec.to_builtins(one) for one in history.findings if one.state == state]
            for state in (FIXED, UNKNOWN)
        }
        data["runs"] = msgspec.to_builtins(history.runs)
    output.data(data, form)


def _table(
    facts: InspectFacts,
    findings: Sequence[InspectFinding],
    recorded: _Recorded,
    *,
    has_history: bool,
    headers: bool,
) -> None:
    past = [
        Subject(one.check, one.cluster, one.kind, one.object).finding(one.severity, one.message)
        for one in recorded.values()
        if one.state in {FIXED, UNKNOWN}
    ]
    if not (findings or past):
        return
    rows, entries = [], []
    for one in (*findings, *past):
        state = _state(facts, recorded.get(identity(one))) if has_history else ""
        check, cluster, kind, name = one.subject
        row = (one.severity, cluster, check, kind, name, one.message, one.next_step)
        rows.append((state, *row) if has_history else row)
        entries.append(
            output.Entry(
                output.GOOD if state == FIXED else _MARKS[one.severity],
                f"{one.severity} {cluster}: {check} {kind} {name}" + (f" ({state})" if state else ""),
                [one.message],
                [one.next_step],
            )
        )
    columns = ("STATE", *_COLUMNS) if has_history else _COLUMNS
    output.report(columns, rows, entries, headers=headers)


def _state(facts: InspectFacts, recorded: RecordedFinding | None) -> str:
    """Return a finding's state, or its age if it persists; empty: not recorded (severity info)."""
    if recorded is None:
        return ""
    if recorded.state == PERSISTING:
        return span(facts.now - timestamps.parse(recorded.since))
    return recorded.state


def _row(finding: InspectFinding, recorded: RecordedFinding | None) -> dict[str, Any]:
    """Return a finding as data; all printed findings are confirmed, so ``transient`` is left out."""
    return {
        **({"state": recorded.state, "since": recorded.since} if recorded else {}),
        "severity": finding.severity,
        **finding.subject._asdict(),
        "message": finding.message,
        "nextStep": finding.next_step,
    }


_SECOND_LOOK = 5.0
"""Seconds before a second read confirms transient findings; a healthy system completes a change in about 1 s."""
_DAYS = re.compile(r"(\d+)d(.*)")


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 without findings, 1 with findings, 3 if a cluster could not be read.

    Findings below ``--fail-on`` do not count.

    Raises:
        ConfigError: flags, configuration or a kubeconfig are wrong; exit code 2.
    """
    options, daemon = command_line.PROGRAM.parse_with(parser(), argv)
    limits = ExpiryLimits(
        grace=options.grace, expiry_warning=options.expiry_warning, expiry_error=options.expiry_error
    )
    if limits.expiry_error > limits.expiry_warning:
        raise ConfigError("--expiry-error: must not be longer than --expiry-warning")
    facts, findings, recorded = asyncio.run(_run(daemon.config, limits, options))
    show(facts, findings, recorded, form=options.output, headers=not options.no_headers)
    return registry.exit_code(facts, findings, fail_on=options.fail_on)


async def _run(
    config: Config, limits: ExpiryLimits, options: argparse.Namespace
) -> tuple[InspectFacts, list[InspectFinding], Inspection | None]:
    """Return facts and findings about all clusters, and the history; read twice if a finding may be transient.

    The history of ``--history`` is updated. It is None without this flag, or if its ConfigMap cannot be read because
    the upper cluster does not answer.

    Raises:
        ConfigError: the upper cluster's kubeconfig or the history cannot be used.
    """
    target = options.history
    in_config_map = history.is_config_map(target)
    async with _opened(config, options.context, options.request_timeout) as opened:
        facts = await reading.read(opened, limits)
        looked = registry.look(facts, registry.RULES)
        if rules := registry.to_confirm(looked):
            await asyncio.sleep(_SECOND_LOOK)
            silent = {one.name: one.error for one in (facts.upper, *facts.lowers) if one.error}
            del facts  # so that both reads are never in memory at the same time
            facts = await reading.read(opened, limits, silent=silent)
            for rule, found in registry.look(facts, rules).items():
                looked[rule] = registry.confirmed(looked[rule], found)
        findings = [one for one in registry.ordered(looked) if one.subject.check not in options.ignore]
        if not target:
            return facts, findings, None
        if in_config_map and facts.upper.error:
            output.note("the history is not updated, because the upper cluster cannot be read")
            return facts, findings, None
        recorded = history.compare(await history.read(target, opened.upper), facts, findings)
        await history.write(target, opened.upper, recorded)
    return facts, findings, recorded


@contextlib.asynccontextmanager
async def _opened(config: Config, context: str, patience: float) -> AsyncIterator[reading.Opened]:
    agent = "virtual-node-inspect"
    credentials = expiries.of_kubeconfig(UPPER, config.kubeconfig, context=context, in_cluster=True)
    upper_config = await kubeconfig.load(config.kubeconfig, context=context, server=config.server)
    async with contextlib.AsyncExitStack() as stack:

        async def open_(cluster: Cluster) -> Client | ConfigError:
            nonlocal credentials
            where, context = cluster.kubeconfig, cluster.context
            try:
                loaded = await connection(cluster)
                credentials += expiries.of_kubeconfig(cluster.name, where, context=context, in_cluster=False)
            except ConfigError as error:
                return error
            client = Client(loaded, user_agent=agent, cluster=cluster.name, timeout=patience)
            return await stack.enter_async_context(client)

        upper = await stack.enter_async_context(
            Client(upper_config, user_agent=agent, cluster=UPPER, timeout=patience)
        )
        await stack.enter_async_context(profiles.added(config, upper))
        lowers = [(cluster, await open_(cluster)) for cluster in config.clusters]
        yield reading.Opened(config, upper, lowers, credentials)


def parser() -> Parser:
    """Return the command's parser, with the daemon's flags."""
    parser = Parser(
        program.name(),
        "inspect",
        about="Find leaks, drift, version and clock skew, expiring certificates and missing capacity in all "
        "clusters, for people and for CI. Changes nothing except the history.",
        examples=(
            ("All clusters of a configuration", "inspect --config clusters.yaml"),
            ("One lower cluster", "inspect --client-kubeconfig tokyo.yaml --nodename vn-tokyo"),
            ("New, persisting and fixed findings", "inspect --config clusters.yaml --history history.json"),
            ("In CI: warnings fail, too", "inspect --config clusters.yaml --fail-on warning -o json"),
        ),
        notes="The other flags are those of the daemon; they select the clusters.",
        exit_codes="0 no findings that count (see --fail-on), 1 findings, 2 usage or configuration, 3 a "
        "cluster could not be read",
    )
    add_flag(parser, "--context CONTEXT", "context of the upper kubeconfig")
    output.add_flags(parser, "table", *output.DATA)
    connect.add_request_timeout(parser)
    add_flag(
        parser,
        "--history TARGET",
        "compare with the previous run, and store this one: a file, or configmap/NAMESPACE/NAME of the upper cluster",
    )
    parser.add_argument(
        "--fail-on",
        default="error",
        choices=registry.FAIL_ON,
        help="least severity that makes the exit code 1 (error)",
    )
    parser.add_argument(
        "--ignore",
        default=[],
        action="append",
        choices=registry.CHECKS,
        metavar="CHECK",
        help="omit the findings of a check; may be given more than once",
    )
    for flag, default, text in (
        ("--grace", "5m", "ignore differences that are younger"),
        ("--expiry-warning", "30d", "warn of certificates and tokens that expire sooner"),
        ("--expiry-error", "7d", "report an error for certificates and tokens that expire sooner"),
    ):
        parser.add_argument(flag, type=_length, default=default, metavar="D", help=f"{text} ({default})")
    command_line.PROGRAM.add_flags(parser)
    return parser


def _length(text: str) -> timedelta:
    """Convert a Go duration that may begin with days (``30d``, ``1d12h``, ``90s``), for argparse."""
    days, rest = 0, text
    if found := _DAYS.fullmatch(text):
        days, rest = int(found[1]), found[2] or "0"
    try:
        return timedelta(days=days, seconds=parse_duration(rest))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30d, 12h or 90s") from None
