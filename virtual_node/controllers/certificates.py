"""Trust anchors and certificates of the upper cluster for lower pods, followed and renewed.

A pod with ``clusterTrustBundle`` or ``podCertificate`` sources has a Secret in the lower cluster
(``translate/pods/pod_certificates.py``). Here it is filled as a kubelet fills the files: anchors from the ClusterTrustBundles
of the upper cluster, and certificates that signers of the upper cluster issue for PodCertificateRequests. The lower kubelet
updates the files when the Secret changes.

Private keys are only in that Secret and in memory. A new process reads them from the Secret, so it requests no certificate
again. The informers start when a pod needs them.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from clusterset.model import names
from clusterset.model.pod.conditions import is_finished
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.client.served_version import first_served
from controller_runtime.errors import ApiError, Forbidden, NotFound, Unavailable, is_retryable
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.util.keyed import KeyedLocks
from controller_runtime.workqueue.controller import Controller, Result
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem, not_mounted, token_secret_taken
from virtual_node.controllers.tokens import TokenStore, Where
from virtual_node.translate.base.ownership import ownership_labels
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import pod_certificates
from virtual_node.translate.pods.pod_certificates import (
    CertificateSource,
    Issue,
    Request,
    TrustSource,
)
from virtual_node.translate.pods.service_account import account_of

_WORKERS = 4
_RECHECK = 60.0
"""Seconds until a Secret is checked again if no event may follow, as of tokens."""
_LACKING = 60.0
"""Longest pause after a request for which a right or the ServiceAccount is missing."""
_CACHE_BEHIND = 10.0
"""Seconds for which a Secret that was written counts as existing before the cache shows it."""
_SYNC_TIMEOUT = 10.0
_AGAIN = 60.0
"""Seconds between two checks whether the upper cluster serves an API."""
_LONGEST_JITTER = 300.0
"""Maximum delay of a renewal in seconds, as in the kubelet."""

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_KEYS: Mapping[str, Callable[[], Key]] = {
    "RSA3072": lambda: rsa.generate_private_key(65537, 3072),
    "RSA4096": lambda: rsa.generate_private_key(65537, 4096),
    "ECDSAP256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ECDSAP384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ECDSAP521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "ED25519": ed25519.Ed25519PrivateKey.generate,
}
"""By ``keyType``."""
_KEY_THREAD = ThreadPoolExecutor(1, "pod-keys")
"""An RSA key takes up to some seconds of a core. Keys that tenants request must not occupy the threads of all other work."""


def key_and_request(key_type: str) -> tuple[str, bytes]:
    """Return a new private key (PKCS#8, PEM), and an empty PKCS#10 request (DER) that it has signed.

    Raises:
        KeyError: the type is unknown.
    """
    key = _KEYS[key_type]()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    encoding = serialization.Encoding
    pem = key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem.decode(), csr.public_bytes(encoding.DER)


@dataclass(eq=False, repr=False)
class LazyInformer:
    """An informer that starts when it is first needed, in a version that the server serves."""

    client: Client
    known: Sequence[Resource]
    """Versions of the resource, the newest first."""
    make: Callable[[Resource], Informer]
    informer: Informer | None = None
    error: ApiError | None = None
    """Why there is no informer."""
    _needed: asyncio.Event = field(default_factory=asyncio.Event)
    _tried: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Follow the server from the first ``synced`` on, until cancelled."""
        await self._needed.wait()
        while self.informer is None:
            try:
                self.informer = self.make(await first_served(self.client, self.known))
            except ApiError as error:
                self.error = error
                self._tried.set()
                await asyncio.sleep(_AGAIN)
        self._tried.set()
        await self.informer.run()

    async def synced(self) -> Informer:
        """Return the informer after its first list.

        Raises:
            ApiError: the server refuses, does not answer, or does not serve the resource.
        """
        self._needed.set()
        try:
            async with asyncio.timeout(_SYNC_TIMEOUT):
                await self._tried.wait()
        except TimeoutError:
            raise Unavailable(f"{self.known[0].qualified} cannot be read yet") from None
        if self.informer is None:
            raise self.error or Unavailable(f"{self.known[0].qualified} cannot be read yet")
        informer = self.informer
        patience = _SYNC_TIMEOUT if informer.last_error is None else 0
        if not informer.has_synced and not await informer.wait_synced(patience):
            error = informer.last_error
            raise (
                error
                if isinstance(error, ApiError)
                else Unavailable(f"{informer.name} cannot be read yet: {error}")
            )
        return informer


@dataclass(eq=False)
class _Tracked:
    """A pod with sources that are filled here."""

    where: Where
    trusts: bool
    issues: dict[str, Issue] = field(default_factory=dict)
    is_loaded: bool = False
    """Whether the credentials of an earlier process were read."""
    has_made_key: bool = False
    """Whether this reconcile has made a key. Further keys wait for those of other pods."""
    written: tuple[bytes, float] = (b"", 0.0)
    """Digest of the Secret that was written last, and the loop time; the cache may not show it yet."""


@dataclass(eq=False, repr=False)
class CertificateController:
    """Keeps the Secrets with the anchors and certificates of our pods."""

    context: ClusterContext
    caches: ClusterCaches
    node_uid: Callable[[str], str]
    """Returns the uid of a virtual node's Node; empty: unknown."""
    wake: Callable[[str], None]
    """Called with the uid of an upper pod that waits for its anchors or certificates."""
    clock: Callable[[], float] = time.time
    _pods: dict[str, _Tracked] = field(default_factory=dict)
    _left: dict[str, Where] = field(default_factory=dict)
    """Secrets in the cache, by uid of their pod."""
    _read_bundles: list[dict[str, Any]] | None = None
    """All ClusterTrustBundles, decoded once for many pods; None: they have changed."""
    _locks: KeyedLocks[str] = field(default_factory=KeyedLocks)

    def __post_init__(self) -> None:
        """Register handlers for the lower Secrets."""
        upper = self.context.upper
        self._store = TokenStore(self.context, self.caches.secrets, is_named=pod_certificates.is_secret_of)
        self._queue = self.context.controller(
            "certificates",
            self.reconcile,
            workers=_WORKERS,
            first_delay=1.0,
            flow=lambda of: self._pods[of].where[0] if of in self._pods else "",
        )
        self._bundles = LazyInformer(upper, resources.CLUSTER_TRUST_BUNDLES, self._follow_bundles)
        self._requests = {
            node: LazyInformer(upper, resources.POD_CERTIFICATE_REQUESTS, self._requests_of(node))
            for node in self.context.nodes
        }
        self.caches.secrets.add_handler(on_add=self._found, on_update=self._changed, on_delete=self._gone)

    @property
    def controller(self) -> Controller[str]:
        """Return the controller of the Secrets, by uid of their upper pod."""
        return self._queue

    async def run(self) -> None:
        """Keep the Secrets until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            for lazy in (self._bundles, *self._requests.values()):
                group.create_task(lazy.run())

    async def ensure(self, upper: Object, upper_pod: dict[str, Any], options: PodOptions) -> list[Problem]:
        """Ensure that the Secret of a pod exists in the lower cluster; return what is missing.

        The pod is requeued when its bundles or requests change.

        Raises:
            ApiError: a cluster refuses; the caller retries.
        """
        sources = pod_certificates.sources_of(upper_pod, options)
        if not sources.trust and not sources.certificates:
            return []
        async with self._locks.of(upper.uid):
            return await self._sync(upper, upper_pod, options)

    def adopt(self, upper: Object, mounted: Collection[str]) -> None:
        """Keep the Secret of a lower pod that an earlier process created.

        Args:
            upper: its upper pod.
            mounted: names of the Secrets that the projected volumes of the lower pod contain.
        """
        if pod_certificates.secret_name(upper.name, upper.uid) in mounted:
            self._queue.queue.add(upper.uid)

    def forget_pod(self, uid: str) -> None:
        """Requeue the Secret of an upper pod that is gone, for deletion."""
        tracked = self._pods.pop(uid, None)
        if tracked is not None:
            # Instead of what `_found` took from a Secret that a user of the lower cluster labelled.
            self._left[uid] = tracked.where
        if uid in self._left:
            self._queue.queue.add(uid)

    async def reconcile(self, of: str) -> Result | None:
        """Update the Secret of an upper pod, or delete it when the pod is gone."""
        upper = self.caches.pods.upper_pod(of)
        if upper is None:
            if self.caches.pods.lower_pod(of) is not None:
                return Result(requeue_after=_RECHECK)
            async with self._locks.of(of):
                await self._remove(of)
            return None
        upper_pod = upper.to_dict()
        if is_finished(upper_pod.get("status")):
            return None
        if self.caches.pods.lower_of(upper) is None:
            self.wake(of)
            return None
        async with self._locks.of(of):
            options = self.context.options[upper_pod["spec"]["nodeName"]]
            problems = await self._sync(upper, upper_pod, options)
        for problem in problems:
            self.context.log.warning(
                "certificates of a pod are not current", pod=upper.key, why=problem.message
            )
        return None

    async def _remove(self, of: str) -> None:
        if (where := self._left.get(of)) is not None:
            await self._store.remove(of, where)
            self._left.pop(of, None)
        self._pods.pop(of, None)
        self._store.forget(of)
        self._queue.queue.drop_delayed(of)

    async def _sync(self, upper: Object, upper_pod: dict[str, Any], options: PodOptions) -> list[Problem]:
        sources = pod_certificates.sources_of(upper_pod, options)
        namespace = self.context.lower_namespace(upper.namespace)
        where = namespace, pod_certificates.secret_name(upper.name, upper.uid)
        tracked = self._pods.setdefault(upper.uid, _Tracked(where, bool(sources.trust)))
        if not tracked.is_loaded:
            cached = self._store.cached(where)
            if cached is not None and self._store.is_of(cached, upper.uid):
                found = pod_certificates.held_credentials(cached.to_dict())
                tracked.issues = {key: Issue(credential) for key, credential in found.items()}
            tracked.is_loaded = True
        problems, data = await self._anchors(sources.trust)
        tracked.has_made_key = False
        for source in sources.certificates:
            if (problem := await self._advance(upper, upper_pod, options, tracked, source)) is not None:
                problems.append(problem)
        self._schedule(upper.uid, tracked)
        credentials = {
            source.key: held
            for source in sources.certificates
            if (held := tracked.issues.get(source.key, Issue()).credential) is not None
        }
        if not data and not credentials:
            return problems
        wanted = pod_certificates.body(
            upper_pod["metadata"],
            data,
            credentials,
            labels=ownership_labels(options.owner, upper.uid),
            namespace=namespace,
        )
        return problems + await self._write(upper, tracked, wanted)

    async def _write(self, upper: Object, tracked: _Tracked, wanted: dict[str, Any]) -> list[Problem]:
        cached, now = self._store.cached(tracked.where), asyncio.get_running_loop().time()
        digest = hashlib.blake2b(msgspec.json.encode(wanted, order="sorted"), digest_size=16).digest()
        if cached is not None and self._store.is_of(cached, upper.uid):
            if pod_certificates.is_written(cached.to_dict(), wanted):
                return []
        elif tracked.written[0] == digest and now - tracked.written[1] < _CACHE_BEHIND:
            return []
        growth = sum(map(len, wanted["data"].values())) - (0 if cached is None else cached.memory)
        if (full := self.context.no_room(upper.namespace, growth)) is not None:
            return [full]
        self._left[upper.uid] = tracked.where  # before the write, because its response may be lost
        if not await self._store.write(upper.uid, wanted):
            self._left.pop(upper.uid, None)
            return [token_secret_taken(self.context.name, tracked.where)]
        tracked.written = digest, now
        return []

    async def _anchors(self, wanted: Sequence[TrustSource]) -> tuple[list[Problem], dict[str, str]]:
        """Return the problems of sources without anchors, and the anchors of the others by key of the Secret."""
        problems: list[Problem] = []
        data: dict[str, str] = {}
        if not wanted:
            return problems, data
        try:
            informer = await self._bundles.synced()
        except ApiError as error:
            return [_unread(wanted[0].volume, resources.CLUSTER_TRUST_BUNDLES[0], error)], data
        if self._read_bundles is None:
            self._read_bundles = [bundle.to_dict() for bundle in informer.store.list()]
        size = 0
        for source in wanted:
            try:
                found = pod_certificates.anchors(source, self._read_bundles)
            except ValueError as error:
                problems.append(not_mounted(source.volume, f"{source}: {error}"))
                continue
            if found is None:
                problems.append(not_mounted(source.volume, f"{source} not found"))
            else:
                data[source.key] = found
                size += len(found)
            if size > pod_certificates.LARGEST:
                text = f"the trust anchors of the pod have more than {pod_certificates.LARGEST} bytes in all; select fewer bundles"
                return [not_mounted(source.volume, text)], {}
        return problems, data

    async def _advance(
        self,
        upper: Object,
        upper_pod: Mapping[str, Any],
        options: PodOptions,
        tracked: _Tracked,
        source: CertificateSource,
    ) -> Problem | None:
        """Do the next step for a certificate; return why there is none yet."""
        if not options.service_accounts:
            return not_mounted(
                source.volume,
                f"signer {source.signer} is one of the upper cluster, and pods have no identity of it "
                "(--enable-serviceaccount=false); policy.podCertificates can allow signers of the lower cluster",
            )
        try:
            requests = await self._requests[options.name].synced()
        except ApiError as error:
            return _unread(source.volume, resources.POD_CERTIFICATE_REQUESTS[0], error)
        issue = tracked.issues.get(source.key, Issue())
        name = issue.request.name if issue.request is not None else ""
        there = requests.store.get(f"{upper.namespace}/{name}")
        step = pod_certificates.decide(
            issue, there.to_dict() if there else None, self.clock(), jitter=_jitter(there)
        )
        tracked.issues[source.key] = step.issue
        if step.event[0]:
            self.context.warn(upper, *step.event)
        if step.must_request and source.key_type not in _KEYS:
            why = f"unknown key type {source.key_type!r}"
            tracked.issues[source.key] = pod_certificates.failed(step.issue, why, self.clock())
        elif step.must_request and tracked.has_made_key:
            self._queue.queue.add(upper.uid)
        elif step.must_request:
            tracked.has_made_key = True
            try:
                made = await self._request(upper, upper_pod, options.name, source, requests.resource)
            except ApiError as error:
                if is_retryable(error):
                    raise
                why = f"PodCertificateRequest for signer {source.signer}: {error.message}"
                # A right or a ServiceAccount may be added at any time. Nothing else that is refused becomes valid by itself.
                longest = _LACKING if isinstance(error, Forbidden | NotFound) else pod_certificates.LAST_RETRY
                tracked.issues[source.key] = pod_certificates.failed(
                    step.issue, why, self.clock(), longest=longest
                )
            else:
                tracked.issues[source.key] = replace(step.issue, request=made, failed="")
        return self._waiting(upper, source, tracked.issues[source.key])

    @staticmethod
    def _waiting(upper: Object, source: CertificateSource, issue: Issue) -> Problem | None:
        if issue.credential is not None:
            return None
        if issue.refused or (issue.failed and issue.request is None):
            return not_mounted(source.volume, issue.refused or issue.failed)
        if issue.request is None:
            return not_mounted(source.volume, "credential bundle is not requested yet")
        text = (
            f"credential bundle is not issued yet: signer {source.signer} has not answered PodCertificateRequest "
            f"{upper.namespace}/{issue.request.name}"
        )
        return not_mounted(source.volume, text)

    async def _request(
        self,
        upper: Object,
        upper_pod: Mapping[str, Any],
        node: str,
        source: CertificateSource,
        resource: Resource,
    ) -> Request:
        client, name = self.context.upper, account_of(upper_pod)
        if not (node_uid := self.node_uid(node)):
            raise Unavailable(f"the uid of Node {node} is not known yet")
        account = await client.get(resources.SERVICE_ACCOUNTS, name, namespace=upper.namespace)
        loop = asyncio.get_running_loop()
        key, csr = await loop.run_in_executor(_KEY_THREAD, key_and_request, source.key_type)
        body = pod_certificates.request_body(
            upper_pod["metadata"],
            source,
            csr,
            api_version=resource.api_version,
            account=name,
            account_uid=account["metadata"]["uid"],
            node=node,
            node_uid=node_uid,
        )
        made = await client.create(resource, body, namespace=upper.namespace)
        return Request(made["metadata"]["name"], key, self.clock())

    def _schedule(self, uid: str, tracked: _Tracked) -> None:
        now = self.clock()
        pauses = [pause for issue in tracked.issues.values() if (pause := pod_certificates.pause(issue, now))]
        if pauses:
            self._queue.queue.add_after(uid, min(pauses))

    def _follow_bundles(self, resource: Resource) -> Informer:
        informer = self.context.upper_informer(resource)

        def changed(_bundle: Object) -> None:
            self._read_bundles = None
            for uid, tracked in self._pods.items():
                if tracked.trusts:
                    self._queue.queue.add(uid)

        informer.on_change(changed, changed)
        return informer

    def _requests_of(self, node: str) -> Callable[[Resource], Informer]:
        def make(resource: Resource) -> Informer:
            informer = Informer(
                self.context.upper,
                resource,
                field_selector=f"spec.nodeName={node}",
                name=f"{resource.qualified}-{node}",
            )
            informer.on_change(changed, changed)
            return informer

        def changed(request: Object) -> None:
            uid = (request.spec or {}).get("podUID") or ""
            if uid in self._pods:
                self._queue.queue.add(uid)

        return make

    def _found(self, secret: Object, initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        of = pod_certificates.secret_owner(secret.name, secret.labels)
        if of and secret.labels.get(names.LABEL_NODE) in self.context.nodes and of not in self._pods:
            self._left[of] = (secret.namespace, secret.name)
            self._queue.queue.add_after(of, _RECHECK if initial else _CACHE_BEHIND)

    def _changed(self, old: Object, _new: Object) -> None:
        of = pod_certificates.secret_owner(old.name, old.labels)
        if of in self._pods:
            self._queue.queue.add(of)

    def _gone(self, secret: Object) -> None:
        of = pod_certificates.secret_owner(secret.name, secret.labels)
        if (tracked := self._pods.get(of)) is not None:
            tracked.written = (b"", 0.0)
            self._queue.queue.add(of)


def _unread(volume: str, resource: Resource, error: ApiError) -> Problem:
    if isinstance(error, NotFound):
        return not_mounted(volume, f"the upper cluster does not serve {resource.qualified}")
    return not_mounted(volume, f"{resource.qualified} cannot be read in the upper cluster: {error.message}")


def _jitter(request: Object | None) -> float:
    """Return a random delay of a renewal, which leaves half of the time between renewal and expiry."""
    status = request.status if request is not None else None
    return pod_certificates.longest_jitter(status or {}, _LONGEST_JITTER) * random.random()  # noqa: S311 - no secret
