"""``virtual-node inspect``: reports leaks, drift, skew, expiry and capacity of all clusters, for people and CI.

Changes nothing except the history.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from clusterset import profile_clusters
from clusterset.config import Cluster
from clusterset.following import connection
from controller_runtime.apimachinery.readable import count
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from virtual_node.commands.common import configured, flags, output
from virtual_node.commands.parsers import inspect as parser
from virtual_node.config import command_line
from virtual_node.config.types import Config
from virtual_node.examine import expiries, inspections, reading, rules
from virtual_node.examine.clusters import VERSION, replica, virtual_nodes
from virtual_node.examine.codes import CHECKED, Severity
from virtual_node.examine.engine import HEALTH, WAY, Level, examine
from virtual_node.examine.expiry import ExpiryLimits, span
from virtual_node.examine.finding import UPPER, Finding
from virtual_node.examine.inspections import FIXED, PERSISTING, UNKNOWN, Inspection, RecordedFinding, Row
from virtual_node.examine.snapshot import Snapshot

rules.load()
LEVELS = (*HEALTH, *WAY, Level.READING, Level.MIRRORED)
"""Levels of the rules that are applied."""
FINE, FOUND, INCOMPLETE = 0, 1, 3
"""Exit codes; 2 is for usage and configuration errors, as for every command."""
_COLUMNS = ("SEVERITY", "CLUSTER", "CHECK", "KIND", "OBJECT", "MESSAGE", "NEXT")
_MARKS = {
    Severity.ERROR: output.BAD,
    Severity.WARNING: output.DOUBTFUL,
    Severity.INFO: output.NOTHING,
}
_SEVERITIES = list(Severity)
_OF_UPPER = frozenset({"Node", "Installation", "Configuration"})
"""Kinds of objects that belong to the upper cluster, although the finding concerns a lower cluster."""
_Recorded = Mapping[tuple[str, str, str, str], RecordedFinding]


def rows(findings: Iterable[Finding]) -> list[Row]:
    """Return findings as the report has them, the most severe first, and those of the upper cluster before others.

    Problems of the upper cluster, such as a missing virtual node, often explain those of lower clusters.
    """
    return sorted(
        map(_row_of, findings),
        key=lambda row: (_SEVERITIES.index(row.severity), row.cluster != UPPER, row.cluster),
    )


def exit_code(snapshot: Snapshot, rows: Sequence[Row], *, fail_on: str) -> int:
    """Return 3 if a cluster could not be read, 1 if a finding is at least as severe as ``fail_on``, otherwise 0."""
    if any(cluster.error for cluster in snapshot.clusters):
        return INCOMPLETE
    if fail_on not in _SEVERITIES:
        return FINE
    bad = _SEVERITIES[: _SEVERITIES.index(Severity(fail_on)) + 1]
    return FOUND if any(row.severity in bad for row in rows) else FINE


def summary(snapshot: Snapshot, rows: Sequence[Row]) -> str:
    """Return the summary: ``3 clusters, 214 pods: 1 error, 2 warnings``."""
    numbers = {each: sum(row.severity is each for row in rows) for each in (Severity.ERROR, Severity.WARNING)}
    counted = [count(number, severity.value) for severity, number in numbers.items() if number]
    scope = f"{count(len(snapshot.clusters), 'cluster')}, {count(_pods(snapshot), 'pod')}"
    return f"{scope}: {', '.join(counted) or 'no findings'}"


def show(
    snapshot: Snapshot, rows: Sequence[Row], history: Inspection | None, *, form: str, headers: bool
) -> None:
    """Print the findings and the summary in a form of ``-o``, with states if there is a history, which has this run."""
    conclusion = summary(snapshot, rows)
    recorded = {each.identity: each for each in history.findings} if history else {}
    if history:
        conclusion += f"; {history.runs[-1].new} new, {history.runs[-1].fixed} fixed"
    if form == "table":
        _table(snapshot, rows, recorded, has_history=history is not None, headers=headers)
        output.conclusion(conclusion)
        return
    data: dict[str, Any] = {
        "clusters": [
            {
                "name": cluster.name,
                "version": cluster.get(VERSION) or "",
                "error": cluster.error,
                "replica": replica(snapshot, cluster),
            }
            for cluster in snapshot.clusters
        ],
        "pods": _pods(snapshot),
        "findings": [_data(row, recorded.get(row.identity)) for row in rows],
        "summary": conclusion,
    }
    if history:
        data |= {
            state: [msgspec.to_builtins(each) for each in history.findings if each.state == state]
            for state in (FIXED, UNKNOWN)
        }
        data["runs"] = msgspec.to_builtins(history.runs)
    output.data(data, form)


def _row_of(one: Finding) -> Row:
    is_of_lower = one.place == UPPER and one.kind not in _OF_UPPER
    more = one.count - 1
    return Row(
        severity=one.severity,
        check=one.code.check,
        cluster=one.cluster or UPPER if is_of_lower else one.place,
        kind=one.kind,
        object=one.name or one.kind.lower(),
        message=f"{one.cause} (and {more} more such pod{'s' * (more > 1)})" if more else one.cause,
        next_step=one.next_step,
    )


def _pods(snapshot: Snapshot) -> int:
    """Return the number of upper pods on the configured virtual nodes."""
    ours = virtual_nodes(snapshot)
    return sum(pod["spec"].get("nodeName") in ours for pod in snapshot.upper.heads("Pod"))


def _table(
    snapshot: Snapshot, rows: Sequence[Row], recorded: _Recorded, *, has_history: bool, headers: bool
) -> None:
    past = [
        Row(Severity(each.severity), each.check, each.cluster, each.kind, each.object, each.message)
        for each in recorded.values()
        if each.state in {FIXED, UNKNOWN}
    ]
    if not (rows or past):
        return
    lines = []
    for row in (*rows, *past):
        state = _state(snapshot, recorded.get(row.identity)) if has_history else ""
        mark = output.GOOD if state == FIXED else _MARKS[row.severity]
        title = f"{row.severity} {row.cluster}: {row.check} {row.kind} {row.object}"
        cells = (row.severity, row.cluster, row.check, row.kind, row.object, row.message, row.next_step)
        lines.append(
            output.Line(
                mark, f"{title} ({state})" if state else title, (state, *cells) if has_history else cells
            )
        )
    columns = ("STATE", *_COLUMNS) if has_history else _COLUMNS
    output.report(columns, lines, headers=headers)


def _state(snapshot: Snapshot, recorded: RecordedFinding | None) -> str:
    """Return a finding's state, or its age if it persists; empty: not recorded (severity info)."""
    if recorded is None:
        return ""
    if recorded.state == PERSISTING:
        return span(snapshot.age(recorded.since))
    return recorded.state


def _data(row: Row, recorded: RecordedFinding | None) -> dict[str, Any]:
    return {
        **({"state": recorded.state, "since": recorded.since} if recorded else {}),
        "severity": row.severity.value,
        "check": row.check,
        "cluster": row.cluster,
        "kind": row.kind,
        "object": row.object,
        "message": row.message,
        "nextStep": row.next_step,
    }


_SECOND_LOOK = 5.0
"""Seconds before a second read confirms transient findings; a healthy system completes a change in about 1 s."""


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
    snapshot, found, recorded = asyncio.run(_run(daemon.config, limits, options))
    show(snapshot, found, recorded, form=options.output, headers=not options.no_headers)
    return exit_code(snapshot, found, fail_on=options.fail_on)


async def _run(
    config: Config, limits: ExpiryLimits, options: argparse.Namespace
) -> tuple[Snapshot, list[Row], Inspection | None]:
    """Return facts and findings about all clusters, and the history; read twice if a finding may be transient.

    The history of ``--history`` is updated. It is None without this flag, or if its ConfigMap cannot be read because
    the upper cluster does not answer.

    Raises:
        ConfigError: the upper cluster's kubeconfig or the history cannot be used.
    """
    target = options.history
    in_config_map = inspections.is_config_map(target)
    async with _opened(config, options) as opened:
        snapshot = await reading.read(opened, limits)
        await configured.add(config, snapshot, opened.upper, opened.lowers)
        result = examine(snapshot, levels=LEVELS, codes=CHECKED)
        if result.doubtful:
            await asyncio.sleep(_SECOND_LOOK)
            silent = {cluster.name: cluster.error for cluster in snapshot.clusters if cluster.error}
            del snapshot  # so that both reads are never in memory at the same time
            snapshot = await reading.read(opened, limits, silent=silent)
            result = examine(snapshot, levels=LEVELS, codes=CHECKED, first=result)
        found = [each for each in rows(result.findings) if each.check and each.check not in options.ignore]
        if not target:
            return snapshot, found, None
        if in_config_map and snapshot.upper.error:
            output.note("the history is not updated, because the upper cluster cannot be read")
            return snapshot, found, None
        recorded = inspections.compare(await inspections.read(target, opened.upper), snapshot, found)
        await inspections.write(target, opened.upper, recorded)
    return snapshot, found, recorded


@contextlib.asynccontextmanager
async def _opened(config: Config, options: argparse.Namespace) -> AsyncIterator[reading.Opened]:
    agent, context, patience = "virtual-node-inspect", options.context, options.request_timeout
    credentials = expiries.of_kubeconfig(UPPER, config.kubeconfig, context=context, in_cluster=True)
    upper_config = await kubeconfig.load(
        config.kubeconfig, context=context, server=config.server, impersonate=flags.impersonation(options)
    )
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
        refused = await stack.enter_async_context(profile_clusters.added(config, upper))
        lowers = [(cluster, await open_(cluster)) for cluster in config.clusters]
        yield reading.Opened(config, upper, lowers, credentials, refused)
