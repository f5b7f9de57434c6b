"""``virtual-node check``: checks kubeconfigs, versions, clocks, rights and reachability of all clusters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from clusterset import profile_clusters, validation
from clusterset.comparing import differences
from clusterset.config import ClusterSet
from clusterset.reading import ConfigFile
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_flag
from virtual_node.commands.check import cluster, service_ranges
from virtual_node.commands.check.cluster import CheckResult
from virtual_node.commands.common import connect, output
from virtual_node.config import command_line, program
from virtual_node.config.command_line import DEFAULT_NODE_NAME
from virtual_node.config.types import Config

_COLUMNS = ("CLUSTER", "CHECK", "OK", "DETAIL", "NEXT")


def main(argv: Sequence[str]) -> int:
    """Check the clusters that the daemon flags describe; return 0 when all checks pass, otherwise 1.

    Raises:
        ConfigError: flags or configuration are wrong; exit code 2.
    """
    options, daemon = command_line.PROGRAM.parse_with(parser(), argv)
    config = daemon.config
    if not daemon.config_file and config.clusters[0].name == DEFAULT_NODE_NAME:
        # Neither the cluster nor its node was named, so the report would show the default node name.
        config.clusters = [msgspec.structs.replace(config.clusters[0], name="lower")]
    differing = _differing(config, options.multi_scheduler_config)
    findings = asyncio.run(run(config, patience=options.request_timeout)) + differing
    wrong = [finding for finding in findings if not finding.ok]
    if options.output in output.DATA:
        output.data({"findings": [asdict(finding) for finding in findings]}, options.output)
    else:
        _print(findings, headers=not options.no_headers)
    return 1 if wrong else 0


def _differing(config: Config, path: str) -> list[CheckResult]:
    """Return a failure for each setting that the multi-scheduler's own file gives differently.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    if not path:
        return []
    other = ConfigFile(ClusterSet, validation.problems).load(path)
    return [
        CheckResult(
            one.cluster or "upper",
            "multi-scheduler",
            ok=False,
            detail=f"{one.field}: {one.one}, in {path}: {one.other}",
            fix="give both programs the same file, or correct the value",
        )
        for one in differences(config, other)
    ]


async def run(config: Config, *, patience: float = connect.TIMEOUT) -> list[CheckResult]:
    """Check the upper cluster and every lower cluster concurrently.

    Args:
        config: the clusters.
        patience: seconds to wait for each response.
    """
    async with contextlib.AsyncExitStack() as stack:
        findings = await _profiles(config, patience, stack)
        return await _clusters(config, patience) + findings


async def _profiles(config: Config, patience: float, stack: contextlib.AsyncExitStack) -> list[CheckResult]:
    """Add the clusters of ClusterProfiles to ``config``; return a failure for each refused ClusterProfile."""
    if config.cluster_profiles is None:
        return []
    try:
        loaded = await kubeconfig.load(config.kubeconfig, server=config.server)
        client = Client(loaded, cluster="upper", user_agent=cluster.AGENT, timeout=patience)
        upper = await stack.enter_async_context(client)
        refused = await stack.enter_async_context(profile_clusters.added(config, upper))
    except ConfigError as error:
        return [CheckResult("upper", "ClusterProfiles", ok=False, detail="not read", fix=str(error))]
    return [
        CheckResult("upper", "ClusterProfile", ok=False, detail=key, fix=why) for key, why in refused.items()
    ]


async def _clusters(config: Config, patience: float) -> list[CheckResult]:
    pending = [cluster.upper(config, patience), *(cluster.lower(one, patience) for one in config.clusters)]
    gathered = await asyncio.gather(*pending)
    findings = [finding for group in gathered for finding in group]
    ranges = await service_ranges.check(config, patience)
    findings += [CheckResult(name, "service range", *verdict) for name, verdict in ranges.items()]
    return findings + _same_cluster(findings)


def _same_cluster(findings: Sequence[CheckResult]) -> list[CheckResult]:
    """Return a failure for each lower cluster that is the upper one: its pods would be mirrored onto themselves."""
    identities = {
        finding.cluster: finding.detail for finding in findings if finding.check == "identity" and finding.ok
    }
    upper = identities.pop("upper", None)
    fix = "its kubeconfig leads to the upper cluster: give that of another cluster"
    return [
        CheckResult(name, "not the upper cluster", ok=False, detail=identity, fix=fix)
        for name, identity in identities.items()
        if identity == upper
    ]


def _print(findings: Sequence[CheckResult], *, headers: bool) -> None:
    wrong = [finding for finding in findings if not finding.ok]
    output.report(
        _COLUMNS,
        [(one.cluster, one.check, "ok" if one.ok else "no", one.detail, one.fix) for one in findings],
        # A narrow terminal shows only failures; passed checks are counted in the conclusion.
        [output.Entry(output.BAD, f"{one.cluster}: {one.check}", [one.detail], [one.fix]) for one in wrong],
        headers=headers,
    )
    verdict = f"All {len(findings)} checks are good."
    if wrong:
        verdict = f"{len(wrong)} of {len(findings)} checks {'fails' if len(wrong) == 1 else 'fail'}."
    output.conclusion(verdict)


def parser() -> Parser:
    """Return the command's parser, with the daemon's flags."""
    parser = Parser(
        program.name(),
        "check",
        about="Check kubeconfigs, versions, clocks, rights and connections of all clusters before the daemon "
        "is started with the same flags.",
        examples=(
            ("One lower cluster", "check --kubeconfig upper.yaml --client-kubeconfig tokyo.yaml"),
            ("All clusters of a configuration, for a script", "check --config clusters.yaml -o json"),
        ),
        notes="The other flags are those of the daemon; they select the clusters.",
        exit_codes="0 all checks pass, 1 a check fails, 2 usage or configuration",
    )
    add_flag(
        parser,
        "--multi-scheduler-config FILE",
        "the multi-scheduler's own file, if it does not read the same one: report where the two differ",
    )
    output.add_flags(parser, "table", *output.DATA)
    connect.add_request_timeout(parser)
    command_line.PROGRAM.add_flags(parser)
    return parser
