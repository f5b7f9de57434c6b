"""Looks at an installation for ``doctor``: every request it takes, and nothing concluded. Writes nothing.

What cannot be read is noted and keeps nothing else from being read: the chain says what follows from it.
"""

from __future__ import annotations

import asyncio
import email.utils
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from controller_runtime import resources
from controller_runtime.api import names, pod_resources
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, Forbidden, NotFound
from controller_runtime.resources import Resource
from virtual_node.commands.doctor_webhook import look_at_webhook
from virtual_node.commands.doctoring.facts import (
    DESCHEDULER_LEASE,
    INSTALLED_AS,
    LABEL_NAME,
    PROXY_REFUSES,
    SCHEDULER_LEASE,
    Facts,
    Installation,
    Json,
    Lower,
    Probe,
    Webhook,
    is_virtual,
    key,
)

_NODE_LEASES = "kube-node-lease"
_SYSTEM = "kube-system"
_LOG_LINES = "5"
_FINISHED = ("Succeeded", "Failed")
_LABEL_PART_OF = "app.kubernetes.io/part-of"
"""With the chart's nameOverride the name is another; this stays."""
_LABEL_COMPONENT = "app.kubernetes.io/component"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Need:
    """A right that looking takes."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""

    @property
    def words(self) -> str:
        """``get nodes/proxy``, ``create pods in shop``."""
        full = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {full}" + (f" in {self.namespace}" if self.namespace else "")


_NEEDS = (
    _Need("list", "nodes"),
    _Need("get", "nodes", subresource="proxy"),
    _Need("list", "pods"),
    _Need("get", "pods", subresource="log"),
    _Need("list", "events"),
    _Need("list", "leases", "coordination.k8s.io", namespace=_NODE_LEASES),
    _Need("get", "leases", "coordination.k8s.io", namespace=_SYSTEM),
    _Need("list", "deployments", "apps"),
    _Need("list", "mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
    _Need("list", "endpointslices", "discovery.k8s.io"),
)


async def look(upper: Client, *, namespace: str) -> Facts:
    """Look at the upper cluster.

    Args:
        upper: its client.
        namespace: where a labelled pod is created on trial.
    """
    answer = await _version(upper)
    if not answer.ok:
        return Facts(now=datetime.now(UTC), server=upper.config.server, answer=answer)
    return await _Look(upper, namespace).facts(answer)


async def look_below(lower: Client, file: str) -> Lower:
    """Look at a lower cluster."""
    answer = await _version(lower)
    if not answer.ok:
        return Lower(file, answer)
    try:
        nodes = await _list(lower, resources.NODES)
        pods = await _list(
            lower, resources.PODS, label_selector=names.LABEL_UPPER_UID, field_selector="status.phase=Pending"
        )
    except ApiError as error:
        return Lower(file, Probe(error.code, error.message))
    return Lower(file, answer, nodes, pods)


@dataclass(slots=True)
class _Look:
    upper: Client
    namespace: str
    unread: dict[str, str] = field(default_factory=dict)

    async def facts(self, answer: Probe) -> Facts:
        """All of them, at the same time where one does not follow from the other."""
        nodes = await self._read("nodes", _list(self.upper, resources.NODES), [])
        virtual = [node["metadata"]["name"] for node in nodes if is_virtual(node)]
        bound = await self._read("requests", self._bound(virtual), {})
        pending = _list(self.upper, resources.PODS, field_selector="status.phase=Pending")
        no_leases: list[Json] = []
        async with asyncio.TaskGroup() as group:
            now = group.create_task(_clock(self.upper))
            denied = group.create_task(self._read("denied", self._denied(), []))
            leases = group.create_task(
                self._read("leases", _list(self.upper, resources.LEASES, namespace=_NODE_LEASES), no_leases)
            )
            waiting = group.create_task(self._read("pending", pending, []))
            events = group.create_task(self._read("events", self._events(), []))
            kubelets = {
                name: group.create_task(self._kubelet(node, bound.get(name, ())))
                for node in nodes
                if (name := node["metadata"]["name"]) in virtual
            }
            installation = group.create_task(self._read("installation", self._installation(), Installation()))
            webhook = group.create_task(
                self._read("webhook", look_at_webhook(self.upper, self.namespace), Webhook())
            )
            scheduler = group.create_task(self._read("scheduler", self._lease(SCHEDULER_LEASE), None))
            descheduler = group.create_task(self._read("descheduler", self._lease(DESCHEDULER_LEASE), None))
        return Facts(
            now=now.result(),
            server=self.upper.config.server,
            answer=answer,
            denied=denied.result(),
            unread=self.unread,
            nodes=nodes,
            leases={lease["metadata"]["name"]: lease for lease in leases.result()},
            requests={name: _requests(pods) for name, pods in bound.items()},
            pending=waiting.result(),
            events=events.result(),
            kubelets={name: task.result() for name, task in kubelets.items()},
            installation=installation.result(),
            webhook=webhook.result(),
            scheduler=scheduler.result(),
            descheduler=descheduler.result(),
        )

    async def _read(self, what: str, reading: Awaitable[T], otherwise: T) -> T:
        try:
            return await reading
        except ApiError as error:
            self.unread[what] = str(error)
            return otherwise

    async def _denied(self) -> list[str]:
        trial = _Need("create", "pods", namespace=self.namespace)
        needs = (*_NEEDS, trial)
        reviews = await asyncio.gather(*(self._review(need) for need in needs))
        return [need.words for need, allowed in zip(needs, reviews, strict=True) if not allowed]

    async def _review(self, need: _Need) -> bool:
        attributes = {
            "verb": need.verb,
            "group": need.group,
            "resource": need.resource,
            "subresource": need.subresource,
            "namespace": need.namespace,
        }
        review = await self.upper.create(
            resources.SELF_SUBJECT_ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}}
        )
        return bool((review.get("status") or {}).get("allowed"))

    async def _events(self) -> list[Json]:
        found = await _list(
            self.upper, resources.EVENTS, field_selector="involvedObject.kind=Pod,type=Warning"
        )
        # Events come by either of two APIs, with either of two times.
        found.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        return found

    async def _bound(self, virtual: Sequence[str]) -> dict[str, Sequence[Json]]:
        """The pods of every virtual node."""
        listed = await asyncio.gather(
            *(_list(self.upper, resources.PODS, field_selector=f"spec.nodeName={name}") for name in virtual)
        )
        return dict(zip(virtual, listed, strict=True))

    async def _kubelet(self, node: Json, bound: Sequence[Json]) -> Probe:
        path = resources.NODES.path(name=node["metadata"]["name"], subresource="proxy/healthz")
        probe = await self._get(path)
        running = next((pod for pod in bound if (pod.get("status") or {}).get("phase") == "Running"), None)
        if PROXY_REFUSES not in probe.text or running is None:
            return probe
        # The proxy goes to no loopback address; logs do, and take the same way.
        metadata = running["metadata"]
        path = resources.PODS.path(namespace=metadata["namespace"], name=metadata["name"], subresource="log")
        container = running["spec"]["containers"][0]["name"]
        log = await self._get(path, {"container": container, "tailLines": "1"})
        # Whatever comes from behind the node's own address has got through to it.
        told = log.ok or log.code in {0, 401, 403, 504} or _address(node) in log.text
        return log if told else Probe(200)

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> Probe:
        try:
            return Probe(
                200, (await self.upper.request("GET", path, params=params)).decode("utf-8", "replace")
            )
        except ApiError as error:
            return Probe(error.code, error.message)

    async def _installation(self) -> Installation:
        for label in (LABEL_NAME, _LABEL_PART_OF):
            selector = f"{label}={INSTALLED_AS}"
            deployments, pods = (
                [one for one in found if _runs_virtual_nodes(one)]
                for found in await asyncio.gather(
                    _list(self.upper, resources.DEPLOYMENTS, label_selector=selector),
                    _list(self.upper, resources.PODS, label_selector=selector),
                )
            )
            if deployments or pods:
                break
        return Installation(deployments, pods, {key(pod): await self._logs(pod) for pod in pods})

    async def _logs(self, pod: Json) -> list[str]:
        """The last words of the first container that has ended badly."""
        metadata = pod["metadata"]
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            previous = "terminated" in (status.get("lastState") or {})
            if not previous and "terminated" not in (status.get("state") or {}):
                continue
            path = resources.PODS.path(
                namespace=metadata["namespace"], name=metadata["name"], subresource="log"
            )
            params = {
                "container": status["name"],
                "tailLines": _LOG_LINES,
                "previous": "true" if previous else "false",
            }
            try:
                text = await self.upper.request("GET", path, params=params)
            except ApiError:
                return []
            return text.decode("utf-8", "replace").splitlines()
        return []

    async def _lease(self, name: str) -> Json | None:
        try:
            return await self.upper.get(resources.LEASES, name, namespace=_SYSTEM)
        except NotFound:
            pass
        try:
            # The chart keeps it in its own namespace.
            found = await _list(self.upper, resources.LEASES, field_selector=f"metadata.name={name}")
        except Forbidden:
            return None
        return found[0] if found else None


def _runs_virtual_nodes(one: Json) -> bool:
    """Whether it is a virtual node's: not the webhook's, say, or the pod of a `helm test` that failed."""
    component = (one["metadata"].get("labels") or {}).get(_LABEL_COMPONENT)
    return component in {None, INSTALLED_AS}


async def _list(client: Client, resource: Resource, **selection: Any) -> list[Json]:
    return [found.to_dict() for found in (await client.list(resource, **selection)).items]


def _requests(pods: Sequence[Json]) -> Mapping[str, int]:
    used: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in _FINISHED:
            used.update({**pod_resources.pod_requests(pod["spec"]), "pods": 1})
    return used


def _address(node: Json) -> str:
    """``host:port`` of a node's kubelet API."""
    status = node.get("status") or {}
    hosts = [one["address"] for one in status.get("addresses") or () if one["type"] == "InternalIP"]
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", "")
    return f"{hosts[0] if hosts else node['metadata']['name']}:{port}"


async def _version(client: Client) -> Probe:
    try:
        return Probe(200, str((await client.version()).get("gitVersion", "?")))
    except ApiError as error:
        return Probe(error.code, error.message)


async def _clock(client: Client) -> datetime:
    """The server's time: leases are compared with it, and this machine's clock may be wrong."""
    try:
        async with client.stream("GET", "/version") as response:
            return email.utils.parsedate_to_datetime(response.headers["Date"]).astimezone(UTC)
    except (ApiError, KeyError, ValueError):
        return datetime.now(UTC)
