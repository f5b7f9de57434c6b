"""``virtual-node lower-cluster join``: adds a lower cluster to an installation and runs a pod there as proof.

Each step reads first and changes only what is missing, so a repeated ``join`` completes an interrupted one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ConfigError, Forbidden, NotFound
from controller_runtime.process import terminal
from controller_runtime.process.flags import read_text
from controller_runtime.process.listening import is_loopback
from controller_runtime.util import event_loop
from virtual_node.commands.common import connect
from virtual_node.commands.diagnose import read_pod
from virtual_node.commands.lower_cluster import account as lower_account
from virtual_node.commands.lower_cluster import applied, helm_release, tunnel, values_file, waiting
from virtual_node.commands.lower_cluster.applied import annotations_of, is_marked, marked, say, secret_data
from virtual_node.commands.lower_cluster.helm_release import Release
from virtual_node.config import program
from virtual_node.examine.engine import in_depth
from virtual_node.examine.reader import Reader
from virtual_node.rights import manifests
from virtual_node.rights import tunnel as tunnel_names
from virtual_node.rights.tunnel import Tunnel

_PROBE = "probe"
_REMOVAL = 60.0
"""Seconds to wait until the namespace is gone in both clusters."""
AGENT = "virtual-node-join"
_COMPARED = ("rules", "subjects")


async def run(options: argparse.Namespace) -> None:
    """Join a lower cluster to the Helm release.

    Args:
        options: the parsed command line.

    Raises:
        ConfigError: a step failed; the message names the next step. Earlier steps are not reverted.
    """
    tunnel.check(options)
    if options.legacy_token:
        raise ConfigError("--legacy-token: not with join, which makes tokens that the virtual node renews")
    async with connect.upper(options, agent=AGENT) as upper, lower_client(options) as lower:
        if not options.values:
            helm_release.require_helm()
        await Join(options, upper, lower, await find_release(upper, options)).run()


class Join:
    """The steps of ``join``. Each can be repeated safely."""

    def __init__(self, options: argparse.Namespace, upper: Client, lower: Client, release: Release) -> None:
        self._options = options
        self._upper = upper
        self._lower = lower
        self._release = release
        self._entry = helm_release.cluster(release.values, options.name)
        self._tunnel: Tunnel | None = None
        self._way: lower_account.Proxy | None = None

    async def run(self) -> None:
        """Run all steps.

        Raises:
            ConfigError: a step failed; earlier steps are not reverted.
        """
        options, upper, lower = self._options, self._upper, self._lower
        known = tunnel.known(await tunnel.kept(upper, options), self._entry)
        await self._check(known)
        await self._account()
        if self._tunnel is not None:
            self._way = await tunnel.ensure(options, upper, lower, self._tunnel, known)
        for account in manifests.ACCOUNTS:
            await self._secret(account)
        wanted = self._wanted()
        if options.values and self._entry is None:
            write_values(options, values_file.added(read_values(options), wanted, source=options.values))
            return
        await self._values(wanted)
        (node,) = helm_release.node_names(wanted)[:1]
        if options.dry_run:
            say("node", f"would wait until {node} is Ready, and run a pod there")
            return
        if self._tunnel is not None:
            await tunnel.connected(lower, self._tunnel, options.timeout)
        await self._ready(node)
        if options.probe_image:
            await _run_probe(upper, lower, node, options, is_tunnelled=self._tunnel is not None)
        if known and self._tunnel is None:
            await tunnel.remove(options, upper, lower, cluster_id=self._id)
        say("joined", f"{options.name}: kubectl get node {node}")

    async def _check(self, known: Mapping[str, str]) -> None:
        """Check that the join can work, before anything is changed.

        Args:
            known: result of ``tunnel.known``.
        """
        options, name = self._options, self._options.name
        upper_id, lower_id = await asyncio.gather(identity(self._upper), identity(self._lower))
        if upper_id == lower_id:
            raise ConfigError(
                f"{options.client_kubeconfig} leads to the upper cluster: give the kubeconfig of the lower cluster"
            )
        self._id = str(self._release.values.get("clusterId") or upper_id)
        self._tunnel = tunnel.chosen(options, known, cluster_id=self._id)
        if self._tunnel is None:
            require_reachable(options.server or self._lower.config.server, given=bool(options.server))
        elif "tunnel" not in (self._release.chart.get("values") or {"tunnel": {}}):
            raise ConfigError(
                f"the chart of release {self._release.name} is of an earlier version, which runs no proxy server: upgrade "
                "it first (docs/operate/upgrade.md)"
            )
        secret = await find(
            self._upper, resources.SECRETS, manifests.secret_name(name), namespace=options.namespace
        )
        if (self._entry or secret) and not (secret and is_marked(secret)):
            raise ConfigError(
                f"cluster {name} is in the release's values, or has a Secret {manifests.secret_name(name)}, that "
                "join did not make: choose another name, or continue by hand (docs/operate/add-a-cluster.md)"
            )
        others = [str(each.get("name")) for each in helm_release.clusters(self._release.values)]
        if other := _same_secrets(name, others):
            raise ConfigError(
                f"NAME: a Secret of cluster {name} would have the name of a Secret of cluster {other}: choose another NAME"
            )
        for node in helm_release.node_names(self._entry or {"name": name}):
            found = await find(self._upper, resources.NODES, node)
            labels = ((found or {}).get("metadata") or {}).get("labels") or {}
            if found and labels.get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
                raise ConfigError(f"the upper cluster has a real node called {node}: choose another NAME")
        for body in lower_account.objects(options):
            resource, metadata = lower_account.KINDS[body["kind"]], body["metadata"]
            found = await find(self._lower, resource, metadata["name"], namespace=metadata.get("namespace"))
            if found and (why := lower_account.conflict(found, body)):
                raise ConfigError(why)
        version = (await self._lower.version(timeout=self._lower.timeout))["gitVersion"]
        say("lower", f"{self._lower.config.server} {version}")

    async def _account(self) -> None:
        """Create missing objects of the accounts and update their rights."""
        options, dry = self._options, self._options.dry_run
        account = await find(
            self._lower, resources.SERVICE_ACCOUNTS, manifests.NAME, namespace=options.account_namespace
        )
        mark = f"{names.JOINED_PREFIX}{self._id}"
        former = joined_as(account or {}).get(self._id, options.name)
        if former != options.name:
            raise ConfigError(
                f"this lower cluster is joined as {former}: '{program.name('lower-cluster')} leave {former}' first, or "
                f"join {former}"
            )
        done = [line for body in lower_account.objects(options) if (line := await self._ensure(body))]
        if former != joined_as(account or {}).get(self._id) and not dry:
            patch = {"metadata": {"annotations": {mark: options.name}}}
            await self._lower.patch(
                resources.SERVICE_ACCOUNTS, manifests.NAME, patch, namespace=options.account_namespace
            )
        say("account", "; ".join(done) or "has its rights")

    async def _ensure(self, body: Mapping[str, Any]) -> str:
        """Create or update an object of the accounts; return what was done, empty: nothing."""
        resource, metadata, dry = lower_account.KINDS[body["kind"]], body["metadata"], self._options.dry_run
        where = {"namespace": metadata.get("namespace")}
        what = f"{body['kind']} {metadata['name']}"
        found = await find(self._lower, resource, metadata["name"], **where)
        if found is None:
            if not dry:
                await self._lower.create(resource, marked(body), **where)
            return f"{'would create' if dry else 'created'} {what}"
        patch = changes(found, body)
        if not patch:
            return ""
        if not dry:
            await self._lower.patch(resource, metadata["name"], patch, **where)
        return f"{'would update' if dry else 'updated'} {what}"

    async def _secret(self, account: str) -> None:
        """Ensure the Secret with an account's kubeconfig and a token that the lower cluster accepts."""
        options = self._options
        name = manifests.secret_name(options.name, account)
        found = await find(self._upper, resources.SECRETS, name, namespace=options.namespace)
        if found is not None and not is_marked(found):
            raise ConfigError(
                f"Secret {options.namespace}/{name} was not made by join: delete it, or choose another name"
            )
        place = f"{options.namespace}/{name}"
        if options.dry_run:
            say("secret", f"{place} exists" if found else f"would create {place}")
            return
        wanted = await lower_account.kubeconfig(self._lower, options, self._way)
        if found is not None and await self._current(found, wanted):
            say("secret", f"{place} has a valid token")
            return
        token, expires = await lower_account.new_token(self._lower, options, account)
        body = manifests.kubeconfig_secret(name, options.namespace, wanted, token=token)
        if found is None:
            await self._upper.create(resources.SECRETS, marked(body), namespace=options.namespace)
        else:
            patch = {"stringData": body["stringData"]}
            await self._upper.patch(resources.SECRETS, name, patch, namespace=options.namespace)
        say("secret", f"{'created' if found is None else 'updated'} {place}, token until {expires}")

    async def _current(self, secret: Mapping[str, Any], wanted: str) -> bool:
        """Report whether a Secret has the expected kubeconfig and a token that the lower cluster accepts."""
        data = secret_data(secret)
        if data.get("kubeconfig") != wanted or not data.get("token"):
            return False
        kind = resources.TOKEN_REVIEWS
        review = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": {"token": data["token"]}}
        answer = await self._lower.create(kind, review)
        return bool((answer.get("status") or {}).get("authenticated"))

    def _wanted(self) -> dict[str, Any]:
        """Return the entry that the release's values must have."""
        entry = self._entry or helm_release.entry(self._options.name)
        return helm_release.with_tunnel(entry, self._tunnel.address if self._tunnel else "")

    async def _values(self, wanted: Mapping[str, Any]) -> None:
        """Add the cluster to the release, or update its tunnel."""
        options, release = self._options, self._release
        if self._entry == wanted:
            place = options.values or f"revision {release.revision}"
            say("values" if options.values else "helm", f"{place} has cluster {options.name}")
            return
        text = yaml.safe_dump(dict(wanted), sort_keys=False, default_flow_style=True, width=10**6).strip()
        if options.values:
            raise ConfigError(
                f"{options.values}: the tunnel of cluster {options.name} is changed: replace its entry in "
                f"virtualNode.clusters by {text}, apply the file, and run the command again"
            )
        if options.dry_run:
            say("helm", f"would upgrade {release.name} with virtualNode.clusters: [{text}]")
            return
        say("helm", f"upgrading {release.name}; waiting for its pods")
        revision = await helm_release.upgrade(
            self._upper, options, lambda values: helm_release.with_cluster(values, wanted),
            why=f"lower cluster {options.name} joined",
        )  # fmt: skip
        change = "Add it to" if self._entry is None else "Replace its entry in"
        place = ", after the clusters there" if self._entry is None else ""
        say(
            "helm",
            f"revision {revision} has it. {change} virtualNode.clusters of your values file, too{place}: - {text}",
        )

    async def _ready(self, name: str) -> None:
        """Wait until a virtual node is Ready.

        Raises:
            ConfigError: the virtual node is not Ready in time.
        """
        why = "it is not registered"

        async def is_ready() -> bool:
            nonlocal why
            if (node := await find(self._upper, resources.NODES, name)) is None:
                return False
            ready = condition(node.get("status"), "Ready")
            why = str(ready.get("message") or "it has no condition Ready")
            return bool(ready.get("status") == "True")

        if await waiting.until(is_ready, seconds=self._options.timeout):
            say("node", f"{name} is Ready")
            return
        raise ConfigError(
            f"virtual node {name} is not Ready after {self._options.timeout:g} s: {why}; look: "
            f"'{program.name('diagnose')} node {name}', 'kubectl --namespace {self._options.namespace} logs --selector "
            "app.kubernetes.io/component=virtual-node'. Then run the command again, or 'lower-cluster leave'."
        )


def _same_secrets(name: str, others: Collection[str]) -> str:
    """Return the first of other clusters of which a Secret has the name of a Secret of a new cluster; empty: there is none.

    The name of a Secret is that of the cluster with an ending, so ``a-viewer`` and the account ``viewer`` of ``a`` are the same.
    """
    own = tunnel_names.secrets(name)
    return next((other for other in others if name not in others and own & tunnel_names.secrets(other)), "")


def probe_pod(node: str, image: str) -> dict[str, Any]:
    """Return the probe pod, which kube-scheduler can place only on this node.

    The restricted Pod Security standard admits it.
    """
    nothing = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _PROBE},
        "spec": {
            "nodeSelector": {names.LABEL_HOSTNAME: node, names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL},
            "tolerations": [{"key": names.TAINT_PROVIDER, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65535,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{"name": _PROBE, "image": image, "securityContext": nothing}],
        },
    }


async def _run_probe(
    upper: Client, lower: Client, node: str, options: argparse.Namespace, *, is_tunnelled: bool
) -> None:
    """Run a pod on a virtual node in a new namespace, then remove both.

    Args:
        upper: client of the upper cluster.
        lower: client of the lower cluster.
        node: the virtual node.
        options: ``probe_image``, ``timeout`` and ``request_timeout`` of the command line.
        is_tunnelled: whether to prove the pod's log and an exec, too.

    Raises:
        ConfigError: the pod does not run in time; the message has the verdict of ``diagnose``.
    """
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "virtual-node-probe-"}}
    namespace = str((await upper.create(resources.NAMESPACES, marked(space)))["metadata"]["name"])
    started = event_loop.now()
    pod: dict[str, Any] | None = None

    async def has_run() -> bool:
        nonlocal pod
        pod = await find(upper, resources.PODS, _PROBE, namespace=namespace)
        # Admission refuses a pod before its namespace has the default ServiceAccount.
        if pod is None and await find(upper, resources.SERVICE_ACCOUNTS, "default", namespace=namespace):
            pod = await upper.create(
                resources.PODS,
                await applied.admissible(lower, probe_pod(node, options.probe_image)),
                namespace=namespace,
            )
        phase = ((pod or {}).get("status") or {}).get("phase")
        return phase in {"Running", "Succeeded"}

    try:
        if not await waiting.until(has_run, seconds=options.timeout):
            raise ConfigError(await _why_not_running(upper, pod, node, options))
        seconds = event_loop.now() - started
        if is_tunnelled:
            await tunnel.prove(upper, namespace, _PROBE, seconds=options.timeout)
        say("probe", f"a pod ran on {node} after {seconds:.0f} s; removing it")
    finally:
        await _remove_probe(upper, lower, namespace)


async def _why_not_running(
    upper: Client, found: dict[str, Any] | None, node: str, options: argparse.Namespace
) -> str:
    if found is None:
        return (
            "the upper cluster made no ServiceAccount in a new namespace: does kube-controller-manager run?"
        )
    verdict = in_depth(await read_pod(Reader(upper), found))
    lines = [f"virtual node {node} is Ready, but a pod does not run on it after {options.timeout:.0f} s:"]
    lines += [" → ".join((each.cause, *each.next_steps)) for each in verdict]
    lines.append(f"Then run the command again; '{program.name('doctor')}' looks at the installation.")
    return " ".join(lines)


async def _remove_probe(upper: Client, lower: Client, namespace: str) -> None:
    """Delete the pod and the upper namespace, and wait until the virtual node has also removed the lower one."""

    async def has_no_pod() -> bool:
        return await find(upper, resources.PODS, _PROBE, namespace=namespace) is None

    # The pod first: the controller of a namespace that still has a pod looks again only after five seconds. Without the right
    # to delete it, the namespace deletes it.
    with contextlib.suppress(NotFound, Forbidden):
        await upper.delete(resources.PODS, _PROBE, namespace=namespace)
        await waiting.until(has_no_pod, seconds=_REMOVAL)
    with contextlib.suppress(NotFound):
        await upper.delete(resources.NAMESPACES, namespace)

    async def is_gone() -> bool:
        left = [await find(each, resources.NAMESPACES, namespace) for each in (upper, lower)]
        return left == [None, None]

    if not await waiting.until(is_gone, seconds=_REMOVAL):
        say("probe", f"namespace {namespace} is still being deleted")


async def find_release(upper: Client, options: argparse.Namespace) -> Release:
    """Return the Helm release, or a release made of the values in ``--values``.

    Raises:
        ConfigError: there is no release, or the file does not contain chart values.
    """
    if options.values:
        values = values_file.parse(read_values(options), source=options.values)
        say("values", f"{options.values}; no release is upgraded")
        return Release(options.release or "virtual-node", options.namespace, 0, values)
    release = await helm_release.find(upper, options.namespace, options.release)
    say("release", f"{release.name} in namespace {release.namespace}, revision {release.revision}")
    return release


def read_values(options: argparse.Namespace) -> str:
    """Return the text of the values file."""
    return read_text("--values", options.values)


def write_values(options: argparse.Namespace, text: str) -> None:
    """Write the values file and print the next step. A dry run prints the text instead.

    Raises:
        ConfigError: the file cannot be written.
    """
    if options.dry_run:
        say("values", f"would write {options.values}:")
        terminal.block("\n".join(text.splitlines()))
        return
    try:
        Path(options.values).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigError(f"--values {options.values}: {error.strerror}") from None
    say("values", f"{options.values} is changed. Apply it (helm upgrade --values, or commit it), then run this "
        "command again: it does the rest")  # fmt: skip


def lower_client(options: argparse.Namespace, *, agent: str = AGENT) -> AbstractAsyncContextManager[Client]:
    """Open a client of the lower cluster, see ``connect.by_file``."""
    return connect.by_file(
        options.client_kubeconfig,
        context=options.client_context,
        agent=agent,
        cluster=options.name,
        timeout=options.request_timeout,
    )


def joined_as(account: Mapping[str, Any]) -> dict[str, str]:
    """Return the names under which a lower cluster is joined, by identity of the upper cluster.

    Args:
        account: the ServiceAccount in the lower cluster.
    """
    return {
        key.removeprefix(names.JOINED_PREFIX): value
        for key, value in annotations_of(account).items()
        if key.startswith(names.JOINED_PREFIX)
    }


def changes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that gives an object the wanted rules, subjects and data; empty: nothing differs."""
    patch = {key: wanted[key] for key in _COMPARED if key in wanted and found.get(key) != wanted[key]}
    held, strings = secret_data(found), wanted.get("stringData") or {}
    data = {key: value for key, value in strings.items() if held.get(key) != value}
    return {**patch, **({"stringData": data} if data else {})}


def require_reachable(server: str, *, given: bool) -> None:
    """Refuse an API server's address that only this machine can reach.

    Args:
        server: URL of the API server.
        given: whether the user gave the URL with ``--server``; then it is never refused.

    Raises:
        ConfigError: the address is a loopback address, which leads pods of the upper cluster to themselves.
    """
    if not given and is_loopback(urlsplit(server).hostname or ""):
        raise ConfigError(
            f"{server} is an address of this machine, which pods of the upper cluster cannot reach: give the address "
            "that they can with --server URL (kind: https://CLUSTER-control-plane:6443)"
        )


async def identity(client: Client) -> str:
    """Return the UID of a cluster's namespace ``kube-system``."""
    return str((await client.get(resources.NAMESPACES, "kube-system"))["metadata"]["uid"])
