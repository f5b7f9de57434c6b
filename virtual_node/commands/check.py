"""``virtual-node check``: checks kubeconfigs, versions, clocks, rights and reachability of all clusters.

Prints one row per check: its finding, or what was read if there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from clusterset import profile_clusters, validation
from clusterset.comparing import Difference, differences
from clusterset.config import Cluster, ClusterSet
from clusterset.reading import ConfigFile
from controller_runtime import resources
from controller_runtime.apimachinery.readable import count
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden
from controller_runtime.rights import Right
from virtual_node.cluster import start_checks
from virtual_node.commands.common import configured, connect, flags, output
from virtual_node.commands.parsers import check as parser
from virtual_node.config import command_line
from virtual_node.config.command_line import DEFAULT_NODE_NAME
from virtual_node.config.types import Config
from virtual_node.examine import cluster_network, facts, reader, rules
from virtual_node.examine.clusters import CLOCK_SKEW, VERSION
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import WAY, examine
from virtual_node.examine.finding import UPPER, Finding
from virtual_node.examine.path_reading import read_version
from virtual_node.examine.rules.apis import form, served_by, upper_domain
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.rights import daemon as rights
from virtual_node.translate.pods import api_server

rules.load()
_COLUMNS = ("CLUSTER", "CHECK", "OK", "DETAIL", "NEXT")
AGENT = "virtual-node-check"
WARNING = "warning: "
"""Begins the detail of a passed check that needs attention."""
_TITLES = {
    Code.UPPER_UNREACHABLE: "reachable",
    Code.LOWER_UNREACHABLE: "reachable",
    Code.KUBECONFIG_UNUSABLE: "kubeconfig",
    Code.IDENTITY_UNKNOWN: "identity",
    Code.ACCOUNT_RIGHT_MISSING: "may {name}",
    Code.NODE_NAME_TAKEN: "node name",
    Code.SAME_CLUSTER: "not the upper cluster",
    Code.SERVICE_RANGE_MISSING: "service range",
    Code.API_MISMATCH: "API of pods",
    Code.API_NOT_USABLE: "API of pods",
    Code.CLUSTER_PROFILE_REFUSED: "ClusterProfile",
    Code.SETTINGS_DIFFER: "multi-scheduler",
}
"""Titles of rows that are not called as the check of ``inspect``."""
_SUBJECTS = frozenset({Code.ACCOUNT_RIGHT_MISSING, Code.NODE_NAME_TAKEN})
"""Codes whose rows show the verbs or the name."""


OpenUpper = Callable[[], AbstractAsyncContextManager[Client]]


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
    findings = asyncio.run(
        run(
            config,
            patience=options.request_timeout,
            differing=differing,
            impersonate=flags.impersonation(options),
        )
    )
    wrong = [finding for finding in findings if not finding.ok]
    if options.output in output.DATA:
        output.data({"findings": [asdict(finding) for finding in findings]}, options.output)
    else:
        _print(findings, headers=not options.no_headers, is_quiet=options.quiet)
    return 1 if wrong else 0


def _differing(config: Config, path: str) -> dict[str, list[Difference]]:
    """Return the settings that the multi-scheduler's own file gives differently, by its path; empty: there is no file.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    if not path:
        return {}
    return {path: list(differences(config, ConfigFile(ClusterSet, validation.problems).load(path)))}


async def run(
    config: Config,
    *,
    patience: float = flags.TIMEOUT,
    differing: Mapping[str, Sequence[Difference]] | None = None,
    impersonate: Mapping[str, Any] = MappingProxyType({}),
) -> list[CheckResult]:
    """Check the clusters concurrently.

    Args:
        config: the clusters.
        patience: seconds to wait for each response.
        differing: fact ``DIFFERENCES``.
        impersonate: as of ``connect.by_file``, in the upper cluster.
    """
    open_upper = partial(_open_upper, config, patience, impersonate)
    upper = View(UPPER)
    upper.put(facts.DIFFERENCES, differing or {})
    async with contextlib.AsyncExitStack() as stack:
        await _read_profiles(config, upper, open_upper, stack)
        snapshot = await _read(config, upper, open_upper, patience)
    return rows(snapshot)


def rows(snapshot: Snapshot) -> list[CheckResult]:
    """Return a row for each finding, and for each fact without one."""
    found = examine(snapshot, levels=WAY).findings
    known = {cluster.name for cluster in snapshot.clusters}
    return [
        *(row for cluster in snapshot.clusters for row in _rows(snapshot, cluster, found)),
        *(_row(each, str(each)) for each in found if each.place not in known),
    ]


def _rows(snapshot: Snapshot, cluster: View, findings: Sequence[Finding]) -> Iterator[CheckResult]:
    """Yield the rows of a cluster, in the order of its facts; findings about nothing of these come last."""
    rest = [each for each in findings if each.place == cluster.name]
    for title, detail in _good(snapshot, cluster):
        found = [each for each in rest if _title(each) == title]
        if title == _TITLES[Code.NODE_NAME_TAKEN]:
            found = [each for each in found if each.name == detail]  # there is a row for each name
        rest = [each for each in rest if each not in found]
        for item in found:
            # The next step says what is wrong with a right or a name.
            yield _row(item, detail if item.code in _SUBJECTS else item.cause)
        if not found:
            yield CheckResult(cluster.name, title, ok=True, detail=detail)
    yield from (_row(each, str(each)) for each in rest)


def _row(found: Finding, detail: str) -> CheckResult:
    # A weak connection works and may be intended.
    ok = found.severity is Severity.INFO or found.code is Code.CONNECTION_WEAK
    shown = f"{WARNING if ok else ''}{detail}"
    return CheckResult(found.place, _title(found), ok, shown, found.next_step)


def _title(found: Finding) -> str:
    return _TITLES.get(found.code, found.code.check or found.code).format(name=found.name)


def _good(snapshot: Snapshot, cluster: View) -> Iterator[tuple[str, str]]:
    """Yield title and detail of the rows about a cluster's facts as they are if nothing is wrong."""
    if server := (cluster.get(facts.ANSWER) or facts.Answer()).server:
        yield "kubeconfig", server
    if version := cluster.get(VERSION):
        yield "version", version
    if (skew := cluster.get(CLOCK_SKEW)) is not None:
        yield "clock", f"{skew:+.0f} s"
    for right in cluster.get(facts.RIGHTS) or ():
        yield f"may {right.resource}", ", ".join(right.verbs)
    if uid := cluster.get(facts.UID):
        yield "identity", uid
    for name in cluster.get(facts.NODE_NAMES) or ():
        yield "node name", name
    if (access := cluster.get(facts.API_ACCESS)) is not None:
        yield "API of pods", _api(access)
    if (names := cluster.get(facts.NAMES)) is not None:
        domain = upper_domain(snapshot)
        yield "names", served_by(names, domain) or f"pods find others by {form(domain)}"
    elif why := cluster.unread.get(facts.NAMES):
        yield "names", f"unknown: {why}"  # the other rows report why
    if (ranges := cluster.get(facts.SERVICE_RANGES)) is not None:
        is_known = ranges.fits and None not in ranges.fits.values()
        unknown = "unknown: a cluster does not report its range"
        yield "service range", f"contains {', '.join([*ranges.fits][:3])}" if is_known else unknown


def _api(access: facts.ApiAccess) -> str:
    if access.endpoint is None:
        return "the lower cluster's, with tokens of the lower cluster"
    host, port = access.endpoint.master
    return f"{host} port {port}, and {api_server.NAME} port {api_server.PORT}"


async def _read(config: Config, upper: View, open_upper: OpenUpper, patience: float) -> Snapshot:
    """Return what was read of all clusters; errors are in their facts."""
    lowers_read = [View(cluster.name) for cluster in config.clusters]
    snapshot = Snapshot(datetime.now(UTC), upper=upper, lowers=lowers_read)
    lowers = list(zip(config.clusters, snapshot.lowers, strict=True))
    await asyncio.gather(
        _read_upper(config, snapshot.upper, open_upper),
        *(_read_lower(cluster, view, patience) for cluster, view in lowers),
    )
    if same := [lower for lower in lowers if lower[0].services.cluster_ip == "same"]:
        await _read_ranges(same, open_upper, patience)
    return snapshot


def _open_upper(
    config: Config, patience: float, impersonate: Mapping[str, Any]
) -> AbstractAsyncContextManager[Client]:
    return connect.by_file(
        config.kubeconfig,
        agent=AGENT,
        cluster=UPPER,
        server=config.server,
        timeout=patience,
        in_cluster=True,
        impersonate=impersonate,
    )


def _open_lower(cluster: Cluster, patience: float) -> AbstractAsyncContextManager[Client]:
    return connect.by_file(
        cluster.kubeconfig,
        agent=AGENT,
        context=cluster.context,
        cluster=cluster.name,
        server=cluster.server,
        timeout=patience,
    )


async def _read_upper(config: Config, view: View, open_upper: OpenUpper) -> None:
    view.put(facts.DOMAIN, config.cluster_domain)
    async with connect.answering(view), open_upper() as client:
        await _read_cluster(client, view, rights.upper(config))
        with contextlib.suppress(Forbidden):  # the row about the right to nodes reports it
            view.put(facts.NODE_NAMES, await _node_names(config, client))
        view.put(facts.API_ACCESS, await configured.api_access(config, client))


async def _read_lower(cluster: Cluster, view: View, patience: float) -> None:
    needed = rights.lower(
        cluster.follow,
        resource_claims=cluster.resource_claims.enabled,
        shared_volumes=bool(cluster.volumes.shared),
    )
    async with connect.answering(view), _open_lower(cluster, patience) as client:
        await _read_cluster(client, view, needed)
        await configured.read_names(cluster, client, view)


async def _read_ranges(
    lowers: Sequence[tuple[Cluster, View]], open_upper: OpenUpper, patience: float
) -> None:
    """Read whether Services can have upper addresses; clusters that do not answer are reported by other rows."""
    with contextlib.suppress(ConfigError):
        async with open_upper() as upper:
            wanted = await cluster_network.read_ranges(upper)
        for cluster, view in lowers:
            with contextlib.suppress(ConfigError):
                async with _open_lower(cluster, patience) as lower:
                    view.put(facts.SERVICE_RANGES, await cluster_network.compare(wanted, lower))


async def _read_cluster(client: Client, view: View, needed: Sequence[Right]) -> None:
    """Read the facts of a cluster that need no configuration.

    Raises:
        ApiError: the cluster does not answer.
    """
    await read_version(client, view)
    by_resource = _by_resource(needed)
    view.put(
        facts.RIGHTS, await reader.bounded(_right(client, name, by_resource[name]) for name in by_resource)
    )
    try:
        system = await client.get(resources.NAMESPACES, "kube-system")
        view.put(facts.UID, str(system["metadata"]["uid"]))
    except ApiError as error:
        view.refuse(facts.UID, str(error))


async def _node_names(config: Config, client: Client) -> dict[str, str]:
    """Return why names of virtual nodes cannot be used, by name; empty: they can."""
    found = {}
    for node in (node for cluster in config.clusters for node in cluster.virtual_nodes()):
        try:
            await start_checks.refuse_real_nodes(client, [node.name])
            found[node.name] = ""
        except ConfigError as error:
            found[node.name] = str(error)
    return found


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


async def _right(client: Client, resource: str, needed: Sequence[Right]) -> facts.AccountRight:
    """Return whether the account has the rights to a resource."""
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
    return facts.AccountRight(resource, list(verbs), "; ".join(fixes))


async def _read_profiles(
    config: Config, view: View, open_upper: OpenUpper, stack: contextlib.AsyncExitStack
) -> None:
    """Add the clusters of ClusterProfiles to ``config``, and the refused ones to the facts."""
    if config.cluster_profiles is None:
        return
    try:
        upper = await stack.enter_async_context(open_upper())
        refused = await stack.enter_async_context(profile_clusters.added(config, upper))
        view.put(facts.PROFILES, refused)
    except ConfigError as error:
        view.refuse(facts.PROFILES, str(error))


def _print(findings: Sequence[CheckResult], *, headers: bool, is_quiet: bool) -> None:
    findings = sorted(findings, key=lambda finding: finding.ok)  # failures first
    wrong = [finding for finding in findings if not finding.ok]
    warnings = [finding for finding in findings if finding.ok and finding.detail.startswith(WARNING)]
    if is_quiet:
        rows = [(each, "ok" if each.ok else "no") for each in (*wrong, *warnings)]
        output.brief([(f"{row.cluster}: {row.check}", state, row.detail, row.fix) for row, state in rows])
    else:
        # A narrow terminal shows only failures and warnings; passed checks are counted in the conclusion.
        lines = [
            output.Line(
                output.BAD if not each.ok else output.DOUBTFUL if each in warnings else "",
                f"{each.cluster}: {each.check}",
                (each.cluster, each.check, "ok" if each.ok else "no", each.detail, each.fix),
            )
            for each in findings
        ]
        output.report(_COLUMNS, lines, headers=headers)
    verdict = f"All {len(findings)} checks are good."
    if wrong:
        verdict = f"{len(wrong)} of {len(findings)} checks {'fails' if len(wrong) == 1 else 'fail'}."
    if warnings:
        verdict += f" {count(len(warnings), 'warning')}."
    output.conclusion(verdict)
