"""``virtual-node check``: checks kubeconfigs, versions, clocks, rights and reachability of all clusters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec

from clusterset import profile_clusters, validation
from clusterset.comparing import differences
from clusterset.config import Cluster, ClusterSet
from clusterset.reading import ConfigFile
from controller_runtime import resources
from controller_runtime.apimachinery.readable import count
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.client.connecting import weaknesses
from controller_runtime.errors import ApiError, ConfigError, Forbidden
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_flag
from controller_runtime.rights import Right
from virtual_node.cluster import start_checks
from virtual_node.commands.check import dns, service_ranges
from virtual_node.commands.common import connect, output
from virtual_node.config import command_line, program
from virtual_node.config.command_line import DEFAULT_NODE_NAME
from virtual_node.config.types import Config
from virtual_node.controllers.pods import upper_endpoint
from virtual_node.examine import probes, reader
from virtual_node.rights import daemon as rights
from virtual_node.translate.pods import api_server

_COLUMNS = ("CLUSTER", "CHECK", "OK", "DETAIL", "NEXT")
AGENT = "virtual-node-check"
WARNING = "warning: "
"""Begins the detail of a passed check that needs attention."""
_SKEW_LIMIT = 5.0
"""Maximum seconds between two clocks; with more, leases, tokens and events are misleading."""
_OLDEST_MINOR = 24


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One row of the report."""

    cluster: str
    check: str
    ok: bool
    detail: str
    fix: str = ""


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
        _print(findings, headers=not options.no_headers, is_quiet=options.quiet)
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
        client = Client(loaded, cluster="upper", user_agent=AGENT, timeout=patience)
        upper = await stack.enter_async_context(client)
        refused = await stack.enter_async_context(profile_clusters.added(config, upper))
    except ConfigError as error:
        return [CheckResult("upper", "ClusterProfiles", ok=False, detail="not read", fix=str(error))]
    return [
        CheckResult("upper", "ClusterProfile", ok=False, detail=key, fix=why) for key, why in refused.items()
    ]


async def _clusters(config: Config, patience: float) -> list[CheckResult]:
    domain = config.cluster_domain
    pending = [
        check_upper(config, patience),
        *(check_lower(one, patience, domain) for one in config.clusters),
    ]
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


def _print(findings: Sequence[CheckResult], *, headers: bool, is_quiet: bool) -> None:
    findings = sorted(findings, key=lambda finding: finding.ok)  # failures first
    wrong = [finding for finding in findings if not finding.ok]
    warnings = [finding for finding in findings if finding.ok and finding.detail.startswith(WARNING)]
    if is_quiet:
        rows = [(one, "ok" if one.ok else "no") for one in (*wrong, *warnings)]
        output.brief([(f"{one.cluster}: {one.check}", state, one.detail, one.fix) for one, state in rows])
    else:
        output.report(
            _COLUMNS,
            [(one.cluster, one.check, "ok" if one.ok else "no", one.detail, one.fix) for one in findings],
            # A narrow terminal shows only failures and warnings; passed checks are counted in the conclusion.
            [
                output.Entry(
                    output.DOUBTFUL if one.ok else output.BAD,
                    f"{one.cluster}: {one.check}",
                    [one.detail],
                    [one.fix],
                )
                for one in (*wrong, *warnings)
            ],
            headers=headers,
        )
    verdict = f"All {len(findings)} checks are good."
    if wrong:
        verdict = f"{len(wrong)} of {len(findings)} checks {'fails' if len(wrong) == 1 else 'fail'}."
    if warnings:
        verdict += f" {count(len(warnings), 'warning')}."
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
    output.add_quiet(parser)
    connect.add_request_timeout(parser)
    command_line.PROGRAM.add_flags(parser)
    return parser


async def check_upper(config: Config, patience: float) -> list[CheckResult]:
    """Return the results for the upper cluster.

    Args:
        config: the clusters.
        patience: seconds to wait for each response.
    """

    async def checks(client: Client) -> AsyncIterator[CheckResult]:
        async for one in _cluster(client, rights.upper(config)):
            yield one
        async for one in _nodes(config, client):
            yield one
        yield await _api_of_pods(config, client)

    path, server = config.kubeconfig, config.server
    return await _results("upper", checks, patience, path=path, server=server, in_cluster=True)


async def check_lower(cluster: Cluster, patience: float, domain: str) -> list[CheckResult]:
    """Return the results for a lower cluster, see ``check_upper``; ``domain`` is the upper cluster's DNS domain."""

    async def checks(client: Client) -> AsyncIterator[CheckResult]:
        async for one in _cluster(client, needed):
            yield one
        try:
            found = await dns.check(cluster, client, domain)
        except ApiError as error:  # the other rows report why
            yield CheckResult(cluster.name, "names", ok=True, detail=f"unknown: {error}")
        else:
            detail = f"{WARNING}{found.detail}" if found.ok and found.next else found.detail
            yield CheckResult(cluster.name, "names", ok=found.ok, detail=detail, fix=found.next)

    needed = rights.lower(
        cluster.follow,
        resource_claims=cluster.resource_claims.enabled,
        shared_volumes=bool(cluster.volumes.shared),
    )
    return await _results(
        cluster.name,
        checks,
        patience,
        path=cluster.kubeconfig,
        context=cluster.context,
        server=cluster.server,
    )


async def _results(
    name: str,
    checks: Callable[[Client], AsyncIterator[CheckResult]],
    patience: float,
    *,
    path: str,
    context: str = "",
    server: str = "",
    in_cluster: bool = False,
) -> list[CheckResult]:
    """Return the results of ``checks``; an error that stops them becomes the last result."""
    found: list[CheckResult] = []
    try:
        async with connect.by_file(
            path,
            agent=AGENT,
            context=context,
            cluster=name,
            server=server,
            timeout=patience,
            in_cluster=in_cluster,
        ) as client:
            async for one in checks(client):
                found.append(one)  # noqa: PERF401 - what came before an error counts
    except connect.RequestError as error:
        trouble = error.trouble
        found.append(CheckResult(name, "reachable", ok=False, detail=trouble.what, fix=trouble.step))
    except ConfigError as error:
        fix = "correct the kubeconfig"
        found.append(CheckResult(name, "kubeconfig", ok=False, detail=str(error), fix=fix))
    return found


async def _nodes(config: Config, client: Client) -> AsyncIterator[CheckResult]:
    """Yield a result for each virtual node: a failure if a real node has the same name."""
    for cluster in config.clusters:
        for node in cluster.virtual_nodes():
            try:
                await start_checks.refuse_real_nodes(client, [node.name])
            except ConfigError as error:
                yield CheckResult("upper", "node name", ok=False, detail=node.name, fix=str(error))
            except Forbidden:
                return  # Row ``may nodes`` reports the missing right.
            else:
                yield CheckResult("upper", "node name", ok=True, detail=node.name)


async def _api_of_pods(config: Config, client: Client) -> CheckResult:
    """Return whether programs in lower pods can use the Kubernetes API. Not a failure, because pods may not use it."""
    identities, setting = config.enable_serviceaccount, config.kubernetes_service
    make = partial(CheckResult, "upper", "API of pods", ok=True)
    if not api_server.may_use_upper(setting, identities=identities):
        if not identities:
            return make(detail="the lower cluster's, with tokens of the lower cluster")
        fix = "set kubernetesService: Auto"
        return make(
            detail=f"{WARNING}the lower API servers refuse the upper tokens that pods get (kubernetesService: {setting})",
            fix=fix,
        )
    if not identities:
        fix = "set enableServiceaccount: true, or kubernetesService: Auto"
        return make(
            detail=f"{WARNING}the upper API server refuses the lower tokens that pods get (enableServiceaccount: false)",
            fix=fix,
        )
    endpoint = await upper_endpoint.find(client, config.kubernetes_service_url)
    if endpoint.problem:
        what, _, fix = endpoint.problem.rpartition(": ")
        return make(detail=WARNING + what, fix=fix)
    host, port = endpoint.master
    return make(detail=f"{host} port {port}, and {api_server.NAME} port {api_server.PORT}")


async def _cluster(client: Client, needed: Sequence[Right]) -> AsyncIterator[CheckResult]:
    name = client.cluster
    yield CheckResult(name, "kubeconfig", ok=True, detail=client.config.server)
    for what, step in weaknesses(client.config):
        # Not a failure, because a weak connection works and may be intended.
        yield CheckResult(name, "transport", ok=True, detail=WARNING + what, fix=step)
    version = await client.version(timeout=client.timeout)
    git_version = version.get("gitVersion", "?")
    minor = int("".join(filter(str.isdigit, version.get("minor", ""))) or 0)
    is_new, fix = minor >= _OLDEST_MINOR, f"Kubernetes 1.{_OLDEST_MINOR} or newer is needed"
    yield CheckResult(name, "version", ok=is_new, detail=git_version, fix="" if is_new else fix)
    moment = await probes.date(client)
    if moment is not None:
        skew = (moment - datetime.now(UTC)).total_seconds()
        is_near, fix = abs(skew) <= _SKEW_LIMIT, "let NTP set the clocks of this machine and the cluster"
        yield CheckResult(name, "clock", ok=is_near, detail=f"{skew:+.0f} s", fix="" if is_near else fix)
    rows = _by_resource(needed)
    for finding in await reader.bounded(_rights(client, what, rows[what]) for what in rows):
        yield finding
    try:
        system = await client.get(resources.NAMESPACES, "kube-system")
        yield CheckResult(name, "identity", ok=True, detail=str(system["metadata"]["uid"]))
    except ApiError as error:
        if name == "upper":
            fix = "grant get on namespace kube-system, or give --cluster-id"
            yield CheckResult(name, "identity", ok=False, detail=str(error), fix=fix)


def _by_resource(needed: Sequence[Right]) -> dict[str, list[Right]]:
    """Group rights by resource. The key includes the API group if two groups have a resource of that name."""
    groups: dict[str, set[str]] = {}
    for right in needed:
        groups.setdefault(right.full_resource, set()).add(right.group)
    rows: dict[str, list[Right]] = {}
    for right in needed:
        is_alone = len(groups[right.full_resource]) == 1 or not right.group
        name = right.full_resource if is_alone else f"{right.full_resource}.{right.group}"
        rows.setdefault(name, []).append(right)
    return rows


async def _rights(client: Client, what: str, needed: Sequence[Right]) -> CheckResult:
    fixes: list[str] = []
    for right in needed:
        # Each denied verb is followed by the object name that the right is limited to, if any.
        denied = [
            " ".join(filter(None, (attributes["verb"], attributes.get("name"))))
            for attributes in right.attributes()
            if not await reader.may(client, attributes)
        ]
        if denied:
            group = right.group or '""'
            fixes.append(
                f"grant {', '.join(denied)} on {right.full_resource} (apiGroup {group}): {right.purpose}"
            )
    verbs = dict.fromkeys(verb for right in needed for verb in right.verbs)
    return CheckResult(
        client.cluster, f"may {what}", ok=not fixes, detail=", ".join(verbs), fix="; ".join(fixes)
    )
