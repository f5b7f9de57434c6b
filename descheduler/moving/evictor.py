"""Evicts pods. Pods with ``evictionResponders`` are first requested from these by an EvictionRequest, if the API is served.

Responders move what a pod holds, such as a partition of a database, before the pod ends. The evictionrequest-controller
asks them one after the other, and evicts the pod itself when none is left. Kubernetes 1.37 serves the API behind a feature
gate and without this controller, so a request that no controller observes is followed by an eviction.

A request belongs to its pod, and the garbage collector deletes it with the pod. A request for a pod that no strategy wants to
move any more is deleted, which withdraws it. Source: KEP-4563, k8s.io/api ``lifecycle/v1alpha1``.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.client import eviction
from controller_runtime.client.client import Client, find
from controller_runtime.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound, TooManyRequests
from controller_runtime.log import get_logger
from controller_runtime.objects import Object
from controller_runtime.util import event_loop

REQUESTER = f"{names.DOMAIN}/descheduler"
_UNOBSERVED = 30.0
"""Seconds in which the evictionrequest-controller must observe a new request; otherwise there is no such controller."""
_RETRY = 5.0
"""Seconds after which a requested pod is judged again."""
_UNWANTED = 180.0
"""Seconds after which a request is withdrawn if no strategy has tried to evict its pod. The longest pause of an attempt is 60 s."""
_log = get_logger(component="evictor")


class Step(enum.Enum):
    """What to do about a pod with responders."""

    REQUEST = enum.auto()
    WAIT = enum.auto()
    EVICT = enum.auto()


def needs_request(pod: Object) -> bool:
    """Report whether a pod has responders. EvictionRequests do not support pods of a PodGroup."""
    spec = pod.spec or {}
    return bool(spec.get("evictionResponders")) and not spec.get("schedulingGroup")


def request_for(pod: Object) -> dict[str, Any]:
    """Return the EvictionRequest for a pod."""
    return {
        "metadata": {
            "name": _name(pod.uid),
            "namespace": pod.namespace,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}],
        },
        "spec": {
            "target": {"pod": {"name": pod.name, "uid": pod.uid}},
            "requester": REQUESTER,
            "intent": "Eviction",
        },
    }


def _name(uid: str) -> str:
    """Return the name of the EvictionRequest for the pod of that uid."""
    return f"virtual-node-{uid}"


def _is_for(spec: Any, pod: Object) -> bool:
    """Report whether a request's spec is that of a descheduler for a pod."""
    return bool(spec == request_for(pod)["spec"])


def decide(pod: Object, request: Mapping[str, Any] | None, *, waited: float) -> Step:
    """Return the next step for a pod with responders.

    Args:
        pod: the pod.
        request: its EvictionRequest; None: it does not exist.
        waited: seconds since the first attempt to evict the pod.
    """
    if request is None:
        return Step.REQUEST
    if not _is_for(request.get("spec"), pod):
        return Step.EVICT  # not ours, or withdrawn by its namespace's users
    status = request.get("status") or {}
    if is_true(status, "Failed"):
        return Step.EVICT
    if status.get("observedGeneration") is None and waited >= _UNOBSERVED:
        return Step.EVICT
    return Step.WAIT


@dataclass(slots=True)
class _Open:
    namespace: str
    name: str
    spec: Mapping[str, Any]
    since: float
    tried: float
    """Time of the last attempt to evict the pod."""
    uid: str = ""
    """The request's; empty: it was not created or read yet."""
    is_asked: bool = False
    """An attempt to evict the pod is in progress, and may create the request."""


class Evictor:
    """Evicts pods of one descheduler."""

    def __init__(self, client: Client, find_pod: Callable[[str], Object | None]) -> None:
        """Begin without requests.

        Args:
            client: of the upper cluster.
            find_pod: returns the pod with a key if it is on a virtual node of this descheduler; None: it is not.
        """
        self._client = client
        self._find_pod = find_pod
        self._open: dict[str, _Open] = {}
        """By the UID of the pod."""
        self._cancelled = asyncio.Event()

    async def evict(self, pod: Object, *, is_forced: bool = False) -> None:
        """Evict a pod, or request its eviction, as ``eviction.evict`` does.

        Args:
            pod: the pod; a cached one may be reduced.
            is_forced: do not wait for responders.

        Raises:
            TooManyRequests: also if its responders have not finished yet.
            NotFound, Conflict, ApiError: as of ``eviction.evict``.
        """
        if not is_forced and needs_request(pod) and await self._waits(pod):
            responders = ", ".join(
                str(responder.get("name")) for responder in (pod.spec or {})["evictionResponders"][:3]
            )
            raise TooManyRequests(
                f"its evictionResponders ({responders}) have not finished: kubectl describe evictionrequest "
                f"{request_for(pod)['metadata']['name']}",
                code=429,
                retry_after=_RETRY,
            )
        await eviction.evict(self._client, pod.metadata)

    async def run(self) -> None:
        """Withdraw requests for pods that no strategy wants to move any more, until cancelled."""
        is_complete = False
        while True:
            is_complete = is_complete or await self._read_earlier()
            await event_loop.wait(self._cancelled, _UNWANTED / 3)
            self._cancelled.clear()
            now = asyncio.get_running_loop().time()
            for pod, request in list(self._open.items()):
                if now - request.tried < _UNWANTED or request.is_asked:
                    continue
                try:
                    await self._withdraw(request)
                except ApiError as error:
                    _log.warning("eviction request is not withdrawn yet", name=request.name, error=str(error))
                else:
                    self._open.pop(pod, None)

    def cancel(self, pods: Iterable[str]) -> None:
        """Withdraw the requests for pods, by UID, that need not move any more. Another strategy may request them again."""
        for request in filter(None, map(self._open.get, pods)):
            request.tried = -_UNWANTED
            self._cancelled.set()

    async def _read_earlier(self) -> bool:
        """Note the requests of earlier leaders, as if a strategy wanted their pods now; return False if they cannot be read."""
        try:
            requests = await self._client.list(resources.EVICTION_REQUESTS)
        except ApiError as error:
            if error.code != 404:  # 404: the API is not served
                _log.warning("eviction requests of an earlier leader are not known", error=str(error))
            return error.code in {403, 404}
        now = asyncio.get_running_loop().time()
        for request in requests.items:
            target = ((request.spec or {}).get("target") or {}).get("pod") or {}
            # Other deschedulers, for other virtual nodes, make requests that look the same.
            pod = self._find_pod(f"{request.namespace}/{target.get('name')}")
            if pod is not None and request.name == _name(pod.uid) and _is_for(request.spec, pod):
                own = _Open(
                    request.namespace, request.name, request.spec, since=now, tried=now, uid=request.uid
                )
                self._open.setdefault(pod.uid, own)
        return True

    async def _withdraw(self, request: _Open) -> None:
        uid = request.uid
        if not uid:  # the response to its creation may be lost
            served = await find(
                self._client, resources.EVICTION_REQUESTS, request.name, namespace=request.namespace
            )
            if served is None or served.get("spec") != request.spec:
                return
            uid = served["metadata"]["uid"]
        try:
            await self._client.delete(
                resources.EVICTION_REQUESTS, request.name, namespace=request.namespace, uid=uid
            )
        except NotFound:
            return  # deleted with its pod

    async def _waits(self, pod: Object) -> bool:
        """Report whether the pod must wait for its responders; request its eviction if that was not done."""
        now = asyncio.get_running_loop().time()
        body = request_for(pod)
        name = body["metadata"]["name"]
        new = _Open(pod.namespace, name, body["spec"], since=now, tried=now)
        request = self._open.setdefault(pod.uid, new)
        request.tried, request.is_asked = now, True
        try:
            served = await find(self._client, resources.EVICTION_REQUESTS, name, namespace=pod.namespace)
            step = decide(pod, served, waited=now - request.since)
            if step is Step.REQUEST:
                served = await self._client.create(resources.EVICTION_REQUESTS, body, namespace=pod.namespace)
        except AlreadyExists:
            return True  # the next attempt reads it
        except (Forbidden, Invalid, NotFound) as error:
            _log.info("eviction cannot be requested; evicting", pod=pod.key, why=str(error))
            return False
        except ApiError as error:
            if error.code != 404:  # the API is not served any more: a response without a Status
                raise
            return False
        finally:
            request.is_asked = False
            if request.tried < now:  # cancelled meanwhile
                self._cancelled.set()
        if served is not None and step is not Step.EVICT:
            request.uid = served["metadata"]["uid"]
        return step is not Step.EVICT
