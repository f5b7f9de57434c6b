"""``virtual-node cleanup``: removes an installation from all clusters. ``helm uninstall`` runs it.

The order of steps avoids losses. First the webhook is unregistered and virtual nodes are cordoned. The pods on
these nodes are deleted while the daemon still runs, so that each lower pod gets its grace period. Then the
daemons are stopped. Last, objects with our labels are removed from the lower clusters, and the nodes from the
upper cluster. Claims that still exist in the upper cluster keep their data in the lower cluster, which is
reported.

A lower cluster that does not answer does not stop the cleanup; what may be left there is reported. A rejected
configuration does not stop the Helm hook, which uses the configuration's valid part.

``--dry-run`` runs the same steps without changes and prints to stdout what would be deleted or changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from clusterset import profile_clusters
from clusterset.config import Cluster
from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.collection import ObjectList
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from controller_runtime.process import terminal
from controller_runtime.resources import Resource
from virtual_node.commands.cleanup.lower import LowerCleanup
from virtual_node.commands.cleanup.upper import UpperCleanup
from virtual_node.commands.common import connect, output
from virtual_node.commands.common.flags import impersonation
from virtual_node.commands.parsers import cleanup as parser
from virtual_node.config import command_line
from virtual_node.config.command_line import DaemonSettings
from virtual_node.config.types import Config
from virtual_node.rights import manifests

_STOPPING = 45.0
"""Seconds to wait for our daemons to stop."""
_SHARE = 0.6
"""Share of the time limit for pods to terminate; the rest is for later steps."""
_ABOVE = 30.0
"""Timeout of one request in the upper cluster."""
_BELOW = 15.0
"""Minimum seconds for each lower cluster, whatever earlier steps took; also the timeout of one request there."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0, even if a lower cluster could not be cleaned.

    Raises:
        ConfigError: flags or configuration are wrong, the Job of ``--as-hook`` is no hook, or the upper cluster fails;
            exit code 2.
    """
    flags = parser()
    own, rest = flags.parse_known_args(argv)
    if own.no_clusters:
        if rest:
            flags.error(f"unrecognized arguments, with --no-clusters: {' '.join(rest)}")
        config = Config(kubeconfig=own.kubeconfig)
    else:
        upper = [f"--kubeconfig={own.kubeconfig}"] if own.kubeconfig else []
        # A user can correct a rejected file and try again. The hook uses its valid parts, so that the release
        # can be uninstalled.
        daemon = command_line.PROGRAM.parser()
        daemon.prog, daemon.also_known = flags.prog, flags.flag_names()
        options = command_line.PROGRAM.parse(
            [*upper, *rest], parser=daemon, settings=DaemonSettings(accepts_rejected=own.as_hook)
        )
        config = options.config
        if options.rejected:
            output.note(
                f"configuration rejected: {options.rejected}; cleaning up with the parts that are valid"
            )
            if not config.clusters:
                output.note(
                    "it has no valid lower cluster, so virtual nodes and objects in lower clusters are left; run "
                    f"`{flags.prog} --config FILE` with a corrected file"
                )
    asyncio.run(_run(config, own))
    return 0


async def _run(config: Config, own: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connect.by_file(
                config.kubeconfig,
                server=config.server,
                agent="virtual-node-cleanup",
                cluster="upper",
                timeout=_ABOVE,
                in_cluster=True,
                impersonate=impersonation(own),
            )
        )
        try:
            refused = await stack.enter_async_context(profile_clusters.added(config, client))
            for key, why in refused.items():
                output.note(f"ClusterProfile {key} is not used: {why}")
        except ConfigError as error:
            output.note(f"{error}; the lower clusters of ClusterProfiles are left")
        await _clean(dry_run_client(client, print_change) if own.dry_run else client, config, own)


async def _clean(client: Client, config: Config, own: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + own.timeout
    if own.as_hook:
        await uninstalls(client, own.namespace, own.selector)
    cluster_id = config.cluster_id
    if not cluster_id:
        cluster_id = str((await client.get(resources.NAMESPACES, "kube-system"))["metadata"]["uid"])
    nodes = [node.name for cluster in config.clusters for node in cluster.virtual_nodes()]
    clusters = [cluster.name for cluster in config.clusters]
    upper = UpperCleanup(client, nodes=nodes, clusters=clusters, say=_progress(own))
    # From here on, no new pod waits for our webhook or goes to a scheduler that is about to be removed.
    await upper.remove_webhook(own.webhook_configuration)
    await upper.cordon()
    await upper.delete_pods(deadline=loop.time() + own.timeout * _SHARE)
    if own.selector and own.namespace:
        await upper.stop_daemons(own.namespace, own.selector, seconds=0 if own.dry_run else _STOPPING)
    await upper.delete_waiting_pods(own.scheduler_name)
    claims = await upper.volumes.claims()
    deadline = max(deadline, loop.time() + _BELOW)
    cleaned = await asyncio.gather(
        *(_lower(cluster, cluster_id, claims, own, deadline=deadline) for cluster in config.clusters)
    )
    await upper.remove(
        namespace=own.namespace, leases=own.leases, secrets=own.secrets, elections=own.elections
    )
    await upper.volumes.release({name for name, is_clean in zip(clusters, cleaned, strict=True) if is_clean})
    if own.as_hook:
        for line in kept(clusters, own.namespace):
            output.note(line)


def kept(clusters: Sequence[str], namespace: str) -> list[str]:
    """Return commands that remove what an uninstallation keeps, because the release did not create it.

    Args:
        clusters: names of the lower clusters.
        namespace: namespace of the release.
    """
    lines = ["kept, because the release did not create it. To remove it, run after the uninstallation:"]
    for name in clusters:
        admin = f"kubectl --kubeconfig {name.upper()}_ADMIN.yaml delete"
        lines.append(
            f"  {admin} namespace {manifests.NAME}    # unless another upper cluster uses these accounts"
        )
        roles = f"{manifests.NAME} {manifests.VIEWER}"
        lines.append(f"  {admin} clusterrole,clusterrolebinding {roles} --ignore-not-found")
    secrets = [manifests.secret_name(name, account) for name in clusters for account in manifests.ACCOUNTS]
    if secrets:
        lines.append(
            f"  kubectl --namespace {namespace} delete secret {' '.join(secrets)} --ignore-not-found"
        )
    return [*lines, f"  kubectl delete namespace {namespace}    # if nothing else is in it"]


async def _lower(
    cluster: Cluster,
    cluster_id: str,
    claims: frozenset[str],
    own: argparse.Namespace,
    *,
    deadline: float,
) -> bool:
    """Clean one lower cluster; return whether no pod in it uses one of our volumes any more.

    A failure is reported and does not stop the cleanup of other clusters.
    """
    progress = _progress(own)
    names = [node.name for node in cluster.virtual_nodes()]
    try:
        if not cluster.kubeconfig:  # a rejected configuration may lack it; kubectl's default must not be used
            raise ConfigError("it has no kubeconfig")
        async with connect.by_file(
            cluster.kubeconfig,
            agent="virtual-node-cleanup",
            context=cluster.context,
            server=cluster.server,
            cluster=cluster.name,
            timeout=_BELOW,
        ) as client:
            cleanup = LowerCleanup(
                dry_run_client(client, print_change) if own.dry_run else client,
                cluster_id=cluster_id,
                nodes=names,
                namespaces=cluster.namespaces,
                upper_claims=claims,
                say=progress,
            )
            async with asyncio.timeout_at(deadline):
                return not await cleanup.run()
    except (ConfigError, TimeoutError) as error:
        why = str(error) or "not finished within the time limit"
        progress(
            f"{cluster.name}: not cleaned ({why}); what is left there carries the label "
            f"virtual-node.io/upper-cluster={cluster_id}"
        )
        return False


def print_change(line: str) -> None:
    """Print an object that ``--dry-run`` would delete or change to stdout, where programs can read it."""
    terminal.line(f"{line} (dry run)")


def _progress(own: argparse.Namespace) -> Callable[[str], None]:
    return (lambda line: output.note(f"{line} (dry run)")) if own.dry_run else output.note


_HELM = "meta.helm.sh/release-name"
"""Annotation on everything that Helm installs: https://helm.sh/docs/topics/advanced/"""
_ARGO = "argocd.argoproj.io/tracking-id"
"""Annotation on everything that Argo CD installs:
https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/"""
"""Annotation on everything that was applied with client-side apply."""
_JOBS = "app.kubernetes.io/component=uninstall"
_WHAT_NOW = (
    "nothing was done. Leave the Job out: `helm template --no-hooks`, skipHooks of kustomize, or uninstall.cleanup=false. "
    "To clean up, run `virtual-node cleanup` by hand before deleting (docs/operate/install.md, Uninstall)"
)


async def uninstalls(client: Client, namespace: str, selector: str) -> None:
    """Verify that the Job runs as an uninstall hook.

    Args:
        client: client of the upper cluster.
        namespace: namespace of our components.
        selector: label selector of our components' Deployments.

    Raises:
        ConfigError: the Job was, or may have been, applied as an ordinary object.
        ApiError: the upper cluster does not answer, or refuses a read.
    """
    found = await client.list(resources.DEPLOYMENTS, namespace=namespace, label_selector=selector)
    if not found.items:
        raise ConfigError(f"namespace {namespace} has no Deployment of {selector}; {_WHAT_NOW}")
    for each in found.items:
        if not runs_hooks(await _metadata(client, resources.DEPLOYMENTS, each)):
            raise ConfigError(
                f"Deployment {each.key} was not installed by Helm or Argo CD, which run this Job when they "
                f"delete it; {_WHAT_NOW}"
            )
    # An apply that failed with conflicts leaves no trace on Helm's Deployments, so Jobs are checked, too.
    jobs = await client.list(resources.JOBS, namespace=namespace, label_selector=f"{selector},{_JOBS}")
    for item in jobs.items:
        if made_by_kubectl(await _metadata(client, resources.JOBS, item)):
            raise ConfigError(f"Job {item.key} was made by kubectl; {_WHAT_NOW}")


async def _metadata(client: Client, resource: Resource, one: Object) -> dict[str, Any]:
    """Read the object's metadata with managedFields, which ``client.list`` drops."""
    metadata: dict[str, Any] = (await client.get(resource, one.name, namespace=one.namespace))["metadata"]
    return metadata


def made_by_kubectl(metadata: Mapping[str, Any]) -> bool:
    """Report whether an object was created or applied with kubectl, from its metadata with managedFields.

    Argo CD may also use the manager name kubectl, but it sets its tracking annotation.
    """
    return _ARGO not in (metadata.get("annotations") or {}) and any(
        entry.get("manager", "").startswith("kubectl") and "f:spec" in (entry.get("fieldsV1") or {})
        for entry in metadata.get("managedFields") or ()
    )


def runs_hooks(metadata: Mapping[str, Any]) -> bool:
    """Report whether Helm or Argo CD manages an object, from its metadata with managedFields.

    Argo CD applies as kubectl does, so its annotation decides. Without this annotation, an object that Helm
    installed and that was applied later is now managed by another tool, which does not know hooks.
    """
    annotations = metadata.get("annotations") or {}
    if _ARGO in annotations:
        return True
    applied = names.ANNOTATION_LAST_APPLIED in annotations or any(
        _applied_without_helm(entry) for entry in metadata.get("managedFields") or ()
    )
    return _HELM in annotations and not applied


def _applied_without_helm(entry: Mapping[str, Any]) -> bool:
    """Report whether a managedFields entry is a server-side apply of a whole Deployment without Helm's annotation.

    See https://kubernetes.io/docs/reference/using-api/server-side-apply/. Manager names prove nothing: Helm
    uses the name of its binary, and a client can choose any. An apply of only some fields, such as replicas,
    does not contain the selector, which every Deployment must have.
    """
    fields = entry.get("fieldsV1") or {}
    annotations = fields.get("f:metadata", {}).get("f:annotations", {})
    return (
        entry.get("operation") == "Apply"
        and "f:selector" in fields.get("f:spec", {})
        and f"f:{_HELM}" not in annotations
    )


def dry_run_client(client: Client, report: Callable[[str], None]) -> Client:
    """Return a client that reads through ``client`` and reports writes instead of sending them.

    Args:
        client: client of the cluster.
        report: called with a line for every object that would be deleted or changed.
    """
    # _DryRunClient has only the verbs that cleanup needs, so that any other verb fails instead of writing.
    return cast("Client", _DryRunClient(client, report))


class _DryRunClient:
    def __init__(self, client: Client, report: Callable[[str], None]) -> None:
        self.cluster = client.cluster
        self.get = client.get
        self._client = client
        self._report = report
        self._gone: set[str] = set()
        """UIDs of objects that a real cleanup would have removed so far."""

    async def list(self, resource: Resource, **which: Any) -> ObjectList:
        listed = await self._client.list(resource, **which)
        if resource is resources.PODS:  # Pods that are already terminating would be gone after the wait.
            self._gone.update(pod.uid for pod in listed.items if pod.metadata.deletion_timestamp)
        left = [each for each in listed.items if each.uid not in self._gone]
        return ObjectList(left, listed.resource_version)

    async def read(self, path: str, **more: Any) -> dict[str, Any]:
        answer = await self._client.read(path, **more)
        if "items" in answer:
            items = answer["items"] or ()
            answer["items"] = [each for each in items if each["metadata"]["uid"] not in self._gone]
        return answer

    async def delete(
        self, resource: Resource, name: str, *, namespace: str | None = None, uid: str = "", **_more: Any
    ) -> None:
        if not uid:  # Deleted by name only, so the object may not exist; then get raises NotFound.
            uid = (await self.get(resource, name, namespace=namespace))["metadata"]["uid"]
        self._gone.add(uid)
        self._say(resource, name, namespace, "deleted")

    async def patch(
        self, resource: Resource, name: str, _patch: Any, *, namespace: str | None = None, **_more: Any
    ) -> dict[str, Any]:
        self._say(resource, name, namespace, "changed")
        return {}

    def _say(self, resource: Resource, name: str, namespace: str | None, what: str) -> None:
        where = f"{namespace}/" if namespace else ""
        self._report(f"{self.cluster}: {resource.kind} {where}{name} {what}")
