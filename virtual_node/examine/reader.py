"""Reads a cluster with the user's rights. Missing rights are recorded, and everything else is still read.

Also explains failed requests with the server, the kubeconfig and the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.apimachinery.readable import guess
from controller_runtime.auth.proxies import without_password
from controller_runtime.client.collection import ListOptions
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound, is_namespace_gone
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.examine.components import explanation
from virtual_node.examine.connections import Failure, failure, proxy_step
from virtual_node.examine.expiry import Expiry, span
from virtual_node.examine.facts import PROXY_REFUSES, Probe
from virtual_node.examine.objects import Json, ended, last_seen, statuses

_LOG_LINES = 5
_decode_object = decoder(dict[str, Any])


async def server_clock(client: Verbs) -> datetime:
    """Return the server's time, or this machine's time if the server does not answer or sends no date.

    Leases are compared with the server's time, because this machine's clock may be wrong.
    """
    try:
        return await server_date(client) or datetime.now(UTC)
    except ApiError:
        return datetime.now(UTC)


async def server_date(client: Verbs) -> datetime | None:
    """Return the server's time; None: the response has no valid Date header.

    Raises:
        ApiError: the server does not answer.
    """
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - takes 10 ms, and not every command needs it

    async with client.stream("GET", "/version", head_timeout=client.timeout) as response:
        text = response.headers.get("Date", "")
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, TypeError):
        return None


async def kubelet_answer(upper: Verbs, node: Json, bound: Sequence[Json]) -> Probe:
    """Return the result of requesting ``/healthz`` of a virtual node's kubelet API through the API server.

    Args:
        upper: the upper cluster.
        node: the virtual node.
        bound: pods on the node. A running pod's log is read instead if the node's address is loopback or
            link-local, because the API server does not proxy to such addresses.
    """
    path = resources.NODES.path(name=node["metadata"]["name"], subresource="proxy/healthz")
    probe = await _get(upper, path)
    running = next((pod for pod in bound if (pod.get("status") or {}).get("phase") == "Running"), None)
    if PROXY_REFUSES not in probe.text or running is None:
        return probe
    # The API server reads logs over the same connection to the kubelet API.
    metadata = running["metadata"]
    path = resources.PODS.path(namespace=metadata["namespace"], name=metadata["name"], subresource="log")
    container = running["spec"]["containers"][0]["name"]
    log = await _get(upper, path, {"container": container, "tailLines": "1"})
    # Any other error comes from the kubelet API itself or the lower cluster, so the kubelet API was reached.
    is_conclusive = log.ok or log.code in {0, 401, 403, 504} or _address(node) in log.text
    return log if is_conclusive else Probe(200)


async def _get(client: Verbs, path: str, params: Mapping[str, str] | None = None) -> Probe:
    try:
        return Probe(200, (await client.request("GET", path, params=params)).decode("utf-8", "replace"))
    except ApiError as error:
        return Probe(error.code, error.message)


def _address(node: Json) -> str:
    """Return ``host:port`` of a node's kubelet API."""
    status = node.get("status") or {}
    hosts = [
        address["address"] for address in status.get("addresses") or () if address["type"] == "InternalIP"
    ]
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", "")
    return f"{hosts[0] if hosts else node['metadata']['name']}:{port}"


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a read needs."""

    verb: str
    """The API verb, such as get, list or create."""
    resource: Resource
    namespace: str | None = field(default=None, kw_only=True)
    """None: all namespaces, or a cluster-scoped resource."""
    subresource: str = field(default="", kw_only=True)
    name: str = field(default="", kw_only=True)
    """Empty: all objects."""

    @property
    def words(self) -> str:
        """Return verb and resource: ``get nodes/proxy``, ``get nodes/tokyo/proxy``, ``create pods in shop``."""
        full = "/".join(filter(None, (self.resource.plural, self.name, self.subresource)))
        return f"{self.verb} {full}" + (f" in {self.namespace}" if self.namespace else "")

    def attributes(self) -> dict[str, str]:
        """Return ``spec.resourceAttributes`` of a SelfSubjectAccessReview."""
        return {
            "verb": self.verb,
            "group": self.resource.group,
            "resource": self.resource.plural,
            "subresource": self.subresource,
            "namespace": self.namespace or "",
            "name": self.name,
        }

    @property
    def question(self) -> str:
        """Return the check: ``kubectl auth can-i list leases.coordination.k8s.io --namespace=kube-node-lease``."""
        qualified = "/".join(filter(None, (self.resource.qualified, self.name)))
        parts = ["kubectl auth can-i", self.verb, qualified]
        if self.subresource:
            parts.append(f"--subresource={self.subresource}")
        if self.namespace:
            parts.append(f"--namespace={self.namespace}")
        elif self.resource.namespaced:
            parts.append("--all-namespaces")
        return " ".join(parts)


def refusal(verb: str, resource: Resource, *, namespace: str | None = None) -> ConfigError:
    """Return the error for a missing mandatory right, see ``Need``."""
    right = Need(verb, resource, namespace=namespace)
    return ConfigError(f"this command needs the right to {right.words}: {right.question}")


async def may(client: Verbs, attributes: Mapping[str, str]) -> bool:
    """Return whether the caller may send a request with these ``resourceAttributes``.

    Raises:
        ApiError: the server does not answer.
    """
    review = await client.create(
        resources.SELF_SUBJECT_ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}}
    )
    return bool((review.get("status") or {}).get("allowed"))


T = TypeVar("T")
_PARALLEL = 8
"""Maximum number of concurrent reads of ``bounded``."""
VIRTUAL_NODES = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}"
"""Label selector of virtual nodes."""
DESCHEDULER_LEASE = "virtual-node-descheduler"


async def bounded(pending: Iterable[Awaitable[T]]) -> list[T]:
    """Await all with bounded concurrency; return the results in order, or raise the first error when all have ended."""
    limit = asyncio.Semaphore(_PARALLEL)

    async def read(one: Awaitable[T]) -> T:
        async with limit:
            return await one

    outcomes = await asyncio.gather(*map(read, pending), return_exceptions=True)
    results: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


class Reader:
    """Reads one cluster for one command run; ``all`` and ``get`` send each request once and reuse its result."""

    def __init__(self, client: Verbs) -> None:
        self.client = client
        self._read: dict[tuple[Any, ...], asyncio.Task[Any]] = {}
        self.missing: dict[Need, None] = {}
        """Missing rights, in the order of their discovery."""

    async def all(self, resource: Resource, **selection: Unpack[ListOptions]) -> list[Object] | None:
        """Return the objects of a collection, sorted by key; None: the list is forbidden.

        Raises:
            ApiError: any other error.
        """
        found = await self._list(resource, selection)
        return None if isinstance(found, Forbidden) else found

    async def objects(self, resource: Resource, **selection: Unpack[ListOptions]) -> list[Json]:
        """Return the objects of a collection as dicts, sorted by key.

        Raises:
            ApiError: the list is forbidden, or the cluster does not answer.
        """
        found = await self._list(resource, selection)
        if isinstance(found, Forbidden):
            raise found
        return [each.to_dict() for each in found]

    async def _list(self, resource: Resource, selection: ListOptions) -> list[Object] | Forbidden:
        async def read() -> list[Object] | Forbidden:
            try:
                listed = await self.client.list(resource, **selection)
            except Forbidden as error:
                self.missing[Need("list", resource, namespace=selection.get("namespace"))] = None
                return error
            return sorted(listed.items, key=lambda each: each.key)

        given = frozenset(item for item in selection.items() if item[1] is not None)
        return await self._once(("list", resource, given), read)

    async def virtual_nodes(self, selector: str = "") -> list[Object]:
        """Return the virtual nodes that a label selector admits, sorted by name.

        Raises:
            ConfigError: the list is forbidden.
            ApiError: any other error.
        """
        selector = ",".join(filter(None, (VIRTUAL_NODES, selector)))
        nodes = await self.all(resources.NODES, label_selector=selector)
        if nodes is None:
            raise refusal("list", resources.NODES)
        return nodes

    async def fields(
        self, resource: Resource, kind: type[T], *, field_selector: str | None = None
    ) -> list[T] | None:
        """Return the objects of a collection with only the fields of a TypedDict; None: the list is forbidden.

        Raises:
            ApiError: any other error.
        """
        try:
            return await self.client.list_typed(resource, kind, field_selector=field_selector)
        except Forbidden:
            self.missing[Need("list", resource)] = None
            return None

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None
    ) -> dict[str, Any] | None:
        """Return an object; None: it does not exist, or reading it is forbidden.

        Raises:
            ApiError: any other error.
        """

        async def read() -> dict[str, Any] | None:
            try:
                return await self.client.get(resource, name, namespace=namespace)
            except NotFound:
                return None
            except Forbidden:
                self.missing[Need("get", resource, namespace=namespace)] = None
                return None

        return await self._once(("get", resource, namespace, name), read)

    async def find(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        otherwise: str = "",
    ) -> dict[str, Any]:
        """Return the object that the user named.

        Args:
            resource: resource of the object.
            name: name as typed.
            namespace: namespace of the object; None: cluster-scoped.
            label_selector: selects the objects to suggest similar names from.
            otherwise: next step for the error if there is neither such an object nor a similar name.

        Raises:
            ConfigError: there is no such object (with a suggestion), or reading it is forbidden.
            ApiError: the cluster does not answer.
        """
        try:
            return await self.client.get(resource, name, namespace=namespace)
        except Forbidden:
            raise refusal("get", resource, namespace=namespace) from None
        except NotFound:
            pass
        hint = ""
        with contextlib.suppress(ApiError):
            candidates = await self.all(resource, namespace=namespace, label_selector=label_selector)
            hint = guess(name, [candidate.name for candidate in candidates or ()])
            if not hint and namespace:
                elsewhere = await self.all(resource, field_selector=f"metadata.name={name}")
                hint = f", did you mean {elsewhere[0].key}?" if elsewhere else ""
        key = f"{namespace}/{name}" if namespace else name
        otherwise = f"; {otherwise}" if otherwise else ""
        raise ConfigError(
            f"there is no {resource.kind.lower()} {key} in the upper cluster{hint or otherwise}"
        )

    async def previous_log(self, pod: Mapping[str, Any]) -> list[str]:
        """Return the last log lines of a pod's first failed container, else of its first ended one; empty: none, or not readable."""
        over = [status for status in statuses(pod) if ended(status)]
        failed = sorted(over, key=lambda one: not ended(one).get("exitCode"))
        if not failed:
            return []
        metadata, is_previous = pod["metadata"], "terminated" not in (failed[0].get("state") or {})
        path = resources.PODS.path(namespace=metadata["namespace"], name=metadata["name"], subresource="log")
        params = {
            "container": failed[0]["name"],
            "tailLines": str(_LOG_LINES),
            "previous": "true" if is_previous else "false",
        }
        try:
            answer = await self.client.request("GET", path, params=params)
        except Forbidden:
            self.missing[Need("get", resources.PODS, namespace=metadata["namespace"], subresource="log")] = (
                None
            )
            return []
        except ApiError:
            return []  # The node does not answer, or the container is gone; logs are optional evidence.
        return answer.decode("utf-8", "replace").splitlines()

    async def events_about(self, pod: Mapping[str, Any]) -> list[Json]:
        """Return the events about a pod, the oldest first; empty also: the list is forbidden.

        Raises:
            ApiError: any other error.
        """
        metadata = pod["metadata"]
        listed = await self.all(
            resources.EVENTS,
            namespace=metadata["namespace"],
            field_selector=f"involvedObject.uid={metadata['uid']}",
        )
        return sorted((event.to_dict() for event in listed or ()), key=last_seen)

    async def last_words(self, pod: Mapping[str, Any]) -> list[str]:
        """Return why a component's pod fails: ``previous_log``, else an explanation by events; empty: unknown, or Ready."""
        if lines := await self.previous_log(pod):
            return lines
        if is_true(pod.get("status"), "Ready"):
            return []
        with contextlib.suppress(ApiError):
            return [explanation(await self.events_about(pod))]
        return []

    async def _once(self, key: tuple[Any, ...], read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if key not in self._read:
            self._read[key] = asyncio.create_task(read())
        found: T = await self._read[key]
        return found

    def rights(self) -> list[dict[str, str]]:
        """Return missing rights for ``-o json``, each with the kubectl command that checks it."""
        return [{"right": need.words, "check": need.question} for need in self.missing]

    def note(self) -> str:
        """Return one line about missing rights; empty: none is missing."""
        if not self.missing:
            return ""
        rights = "; ".join(need.question for need in self.missing)
        return f"some information is missing, because these rights are missing: {rights}"


if TYPE_CHECKING:
    from controller_runtime.auth.kubeconfig import ConnectionConfig

_VERIFY = re.compile(r"certificate verify failed: (.*?)[.]? \(_ssl")
_STEPS = {
    Failure.REFUSED: "is the cluster running, and is it the intended one?",
    Failure.SILENT: "is it reachable from here (VPN, firewall, proxy), and is it the intended one?",
    Failure.NO_NAME: "is the name correct, and does the DNS used here resolve it?",
    Failure.UNTRUSTED: "give the kubeconfig the CA of this API server (certificate-authority-data)",
    Failure.TLS: "does an API server listen there, and does it accept the kubeconfig's client certificate?",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, including server and kubeconfig, and what to do next."""

    what: str
    step: str

    def __str__(self) -> str:
        return f"{self.what}; {self.step}" if self.step else self.what


def explain_failure(
    error: ApiError, config: ConnectionConfig, *, expiries: Sequence[Expiry], now: datetime
) -> Trouble:
    """Return the cause of a failed request and the next step.

    Args:
        error: the error of the request.
        config: connection that was used.
        expiries: expiry times of the kubeconfig's credentials.
        now: timezone-aware current time.
    """
    place = f"{config.server} ({_origin(config)})"
    kind = failure(error.message, error.code)
    ended = [expiry for expiry in expiries if expiry.ends <= now]
    if ended and (error.code == 401 or kind is Failure.TLS):
        what = "token" if ended[0].kind == "Token" else "client certificate"
        return Trouble(
            f"{place}: the kubeconfig's {what} expired {span(now - ended[0].ends)} ago", "renew it"
        )
    if error.code == 401:
        return Trouble(f"{place} does not accept the kubeconfig's credentials (401)", "renew them")
    if error.code == 403:
        step = "ask an administrator for that right"
        if is_namespace_gone(error):
            step = "repeat the command when the namespace is gone"
        return Trouble(f"{place}: {error.message}", step)
    if error.code >= 500:
        return Trouble(f"{place}: {error}", "check it: kubectl get --raw '/readyz?verbose'")
    if error.code or kind not in _STEPS:
        return Trouble(f"{place}: {error}", proxy_step(error.message))
    detail = _VERIFY.search(error.message)
    detail_text = f": {detail[1]}" if detail else ""
    step = "renew the API server's certificate" if "expired" in detail_text else _STEPS[kind]
    return Trouble(f"{place}: {kind.value}{detail_text}", step)


def _origin(config: ConnectionConfig) -> str:
    parts = [config.source or "no kubeconfig"]
    if config.context_name:
        parts.append(f"context {config.context_name}")
    if config.proxy_url:
        parts.append(f"through {without_password(config.proxy_url)}")
    return ", ".join(parts)
