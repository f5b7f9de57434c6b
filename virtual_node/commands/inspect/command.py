"""``virtual-node inspect``: reports leaks, drift, skew, expiry and capacity of all clusters, for people and CI.

Changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_flag, parse_duration
from virtual_node.certificates import expiries
from virtual_node.certificates.expiry import UPPER, ExpiryLimits
from virtual_node.commands.common import connect, daemon_flags, output
from virtual_node.commands.inspect import reading, rules
from virtual_node.commands.inspect.facts import ERROR, INFO, WARNING, InspectFacts, InspectFinding
from virtual_node.config import program
from virtual_node.config.types import Config, LowerClusterConfig

_COLUMNS = ("SEVERITY", "CLUSTER", "CHECK", "KIND", "OBJECT", "MESSAGE", "NEXT")
_SECOND_LOOK = 5.0
"""Seconds before a second read confirms transient findings; a healthy system completes a change in about 1 s."""
_MARKS = {ERROR: output.BAD, WARNING: output.DOUBTFUL, INFO: output.NOTHING}
_DAYS = re.compile(r"(\d+)d(.*)")


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 without findings, 1 with findings, 3 if a cluster could not be read.

    Findings below ``--fail-on`` do not count.

    Raises:
        ConfigError: flags, configuration or a kubeconfig are wrong; exit code 2.
    """
    options, daemon = daemon_flags.parse(_own, argv)
    limits = ExpiryLimits(
        grace=options.grace, expiry_warning=options.expiry_warning, expiry_error=options.expiry_error
    )
    if limits.expiry_error > limits.expiry_warning:
        raise ConfigError("--expiry-error: must not be longer than --expiry-warning")
    facts, findings = asyncio.run(
        run(daemon.config, limits, context=options.context, patience=options.request_timeout)
    )
    findings = [one for one in findings if one.check not in options.ignore]
    _show(facts, findings, form=options.output, headers=not options.no_headers)
    return rules.exit_code(facts, findings, fail_on=options.fail_on)


async def run(
    config: Config, limits: ExpiryLimits, *, context: str = "", patience: float = connect.TIMEOUT
) -> tuple[InspectFacts, list[InspectFinding]]:
    """Return facts and findings about all clusters; read twice if a finding may be transient.

    Args:
        config: the clusters.
        limits: thresholds of findings.
        context: context of the upper cluster's kubeconfig; empty: the current one.
        patience: seconds to wait for each response.

    Raises:
        ConfigError: the upper cluster's kubeconfig cannot be used.
    """
    async with _opened(config, context, patience) as opened:
        facts = await reading.read(opened, limits)
        findings = rules.inspect(facts)
        if any(finding.transient for finding in findings):
            await asyncio.sleep(_SECOND_LOOK)
            silent = {one.name: one.error for one in (facts.upper, *facts.lowers) if one.error}
            facts = await reading.read(opened, limits, silent=silent)
            findings = rules.confirmed(findings, rules.inspect(facts))
    return facts, findings


@contextlib.asynccontextmanager
async def _opened(config: Config, context: str, patience: float) -> AsyncIterator[reading.Opened]:
    agent = "virtual-node-inspect"
    credentials = expiries.of_kubeconfig(UPPER, config.kubeconfig, context=context, in_cluster=True)
    upper_config = await kubeconfig.load(config.kubeconfig, context=context, server=config.server)
    async with contextlib.AsyncExitStack() as stack:

        async def open_(cluster: LowerClusterConfig) -> Client | ConfigError:
            nonlocal credentials
            where, context = cluster.kubeconfig, cluster.context
            try:
                loaded = await kubeconfig.load(where, context=context, in_cluster=False)
                credentials += expiries.of_kubeconfig(cluster.name, where, context=context, in_cluster=False)
            except ConfigError as error:
                return error
            client = Client(loaded, user_agent=agent, cluster=cluster.name, timeout=patience)
            return await stack.enter_async_context(client)

        upper = await stack.enter_async_context(
            Client(upper_config, user_agent=agent, cluster=UPPER, timeout=patience)
        )
        lowers = [(cluster, await open_(cluster)) for cluster in config.clusters]
        yield reading.Opened(config, upper, lowers, credentials)


def _show(facts: InspectFacts, findings: Sequence[InspectFinding], *, form: str, headers: bool) -> None:
    summary = rules.summary(facts, findings)
    if form != "table":
        clusters = [
            {"name": cluster.name, "version": cluster.version, "error": cluster.error}
            for cluster in (facts.upper, *facts.lowers)
        ]
        report = {
            "clusters": clusters,
            "pods": rules.pods(facts),
            "findings": [_row(finding) for finding in findings],
            "summary": summary,
        }
        output.data(report, form)
        return
    if findings:
        output.report(
            _COLUMNS,
            [
                (one.severity, one.subject.cluster, one.check, *one.subject[1:], one.message, one.next_step)
                for one in findings
            ],
            [
                output.Entry(
                    _MARKS[one.severity],
                    f"{one.severity} {one.subject.cluster}: {one.check} {one.subject.kind} {one.subject.object}",
                    [one.message],
                    [one.next_step] if one.next_step else [],
                )
                for one in findings
            ],
            headers=headers,
        )
    output.conclusion(summary)


def _row(finding: InspectFinding) -> dict[str, Any]:
    """Return a finding as data; all printed findings are confirmed, so ``transient`` is left out."""
    return {
        "severity": finding.severity,
        "check": finding.check,
        **finding.subject._asdict(),
        "message": finding.message,
        "nextStep": finding.next_step,
    }


def parser() -> Parser:
    """Return the command's parser, with the daemon's flags."""
    return daemon_flags.with_daemon_flags(_own())


def _own() -> Parser:
    parser = Parser(
        program.name(),
        "inspect",
        about="Find leaks, drift, version and clock skew, expiring certificates and missing capacity in all "
        "clusters, for people and for CI. Changes nothing.",
        examples=(
            ("All clusters of a configuration", "inspect --config clusters.yaml"),
            ("One lower cluster", "inspect --client-kubeconfig tokyo.yaml --nodename vn-tokyo"),
            ("In CI: warnings fail, too", "inspect --config clusters.yaml --fail-on warning -o json"),
        ),
        notes="The other flags are those of the daemon; they select the clusters.",
        exit_codes="0 no findings that count (see --fail-on), 1 findings, 2 usage or configuration, 3 a "
        "cluster could not be read",
    )
    add_flag(parser, "--context CONTEXT", "context of the upper kubeconfig")
    output.add_flags(parser, "table", *output.DATA)
    connect.add_request_timeout(parser)
    parser.add_argument(
        "--fail-on",
        default="error",
        choices=rules.FAIL_ON,
        help="least severity that makes the exit code 1 (error)",
    )
    parser.add_argument(
        "--ignore",
        default=[],
        action="append",
        choices=rules.CHECKS,
        metavar="CHECK",
        help="omit the findings of a check; may be given more than once",
    )
    for flag, default, text in (
        ("--grace", "5m", "ignore differences that are younger"),
        ("--expiry-warning", "30d", "warn of certificates and tokens that expire sooner"),
        ("--expiry-error", "7d", "report an error for certificates and tokens that expire sooner"),
    ):
        parser.add_argument(flag, type=_length, default=default, metavar="D", help=f"{text} ({default})")
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
