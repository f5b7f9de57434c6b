"""The pods and namespaces that decide which objects follow pods into a lower cluster, and what the copies contain.

``NamespaceUsers`` and ``UnusedCopies`` decide when copies are needed, and when a copy that none of our pods needs may be deleted.
Upper namespaces need copies if they have pods on our virtual nodes, or had some less than a grace period ago.

``SelectedNamespaces`` evaluates each namespace selector once for all objects that have it. A tenant writes the selectors, and each
is compared with the labels of all upper namespaces. So an object and a namespace may have a limited number of different
selectors, a new one is compared in slices, and after a change of a namespace only this namespace is compared again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from clusterset.model import names
from clusterset.model.pod.conditions import is_finished, is_true
from clusterset.model.policy.copied_keys import ROUTING, KeyPatterns
from controller_runtime import resources
from controller_runtime.apimachinery.matching import Matcher, compile_selector
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import find_listed
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import Slicer
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate import endpoints
from virtual_node.translate.base import ownership
from virtual_node.translate.base.view import (
    MOST_SELECTORS_OF_NAMESPACE,
    Labels,
    LowerPod,
    Selector,
    View,
    selector_code,
)
from virtual_node.translate.pods import api_server
from virtual_node.translate.pods.status import unready_gates

_MOST_CHANGES = 1000
"""Number of changes that are kept at least, so that selectors can be brought up to date."""
_AT_ONCE = 100
"""Namespaces that are compared with a selector before other tasks may run."""
_ROUTING = KeyPatterns(ROUTING)
_SERVICE = "service"
"""Index of lower EndpointSlices by the key of their lower Service."""


@dataclass(eq=False, repr=False)
class Surroundings:
    """Reads caches of one lower cluster and calls functions when they change."""

    context: ClusterContext
    caches: ClusterCaches
    namespaces: Namespaces
    _for_users: list[Callable[[str], None]] = field(default_factory=list)
    _live: defaultdict[str, dict[str, Labels]] = field(default_factory=lambda: defaultdict(dict))
    """Labels of pods that have not finished, by upper namespace and uid; only if ``on_pods`` was called."""

    def __post_init__(self) -> None:
        """Register handlers on the informers."""
        self.backends = Backends(self.caches.pods, self.caches.pods_of_others)
        """The lower pods of endpoints."""
        self.users = NamespaceUsers(self.caches.pods.upper.values(), on_change=self._users_changed)
        """Upper namespaces with pods on our virtual nodes."""
        self.selected = SelectedNamespaces(self._labels_of, self.namespaces.allows_namespace)
        """Results of the namespace selectors of objects."""
        self.foreign_slices = Informer(
            self.context.lower,
            resources.ENDPOINT_SLICES,
            label_selector=endpoints.SELECTOR,
            transform=endpoints.shrunk,
            indexers={_SERVICE: endpoints.lower_service},
            name="foreign-endpointslices",
        )
        """Lower EndpointSlices that others add to Services, without their endpoints. The controller of Services runs it."""

        def labels_changed(old: Object, new: Object) -> None:
            if old.labels != new.labels:
                self.selected.changed(new.name)

        self.caches.upper_namespaces.add_handler(
            on_add=lambda new, _initial: self.selected.changed(new.name),
            on_update=labels_changed,
            on_delete=lambda old: self.selected.changed(old.name),
        )

    def view(self) -> View:
        """Return what translations read, from the caches."""
        return replace(
            self.context.view(),
            is_allowed=self.namespaces.allows_namespace,
            labels_of=self._labels_of,
            selected=self.selected.select,
            pods=lambda namespace: self._live.get(namespace, {}).values(),
            find_pod=self._find_pod,
            publishes_unready=self._publishes_unready,
            has_service=self._has_service,
            service_annotations=self._service_annotations,
        )

    def has_lower_pods(self, namespace: str) -> bool:
        """Report whether one of our lower pods is in a lower namespace."""
        return self.caches.pods.are_in(namespace)

    def on_users(self, call: Callable[[str], None]) -> None:
        """Register a function to call with each upper namespace that gets its first pod or loses its last."""
        self._for_users.append(call)

    def on_pods(self, call: Callable[[str], None]) -> None:
        """Register a function to call with the namespace of each pod that starts, finishes, or changes its labels."""

        def changed(pod: Object) -> None:
            if is_finished(pod.status):
                gone(pod)
            elif self._live[pod.namespace].get(pod.uid) != pod.labels:
                self._live[pod.namespace][pod.uid] = pod.labels
                call(pod.namespace)

        def gone(pod: Object) -> None:
            pods = self._live[pod.namespace]
            if pods.pop(pod.uid, None) is not None:
                call(pod.namespace)
            if not pods:
                del self._live[pod.namespace]

        for informer in self.caches.pods.upper.values():
            informer.on_change(changed, gone)

    def on_services(self, call: Callable[[str], None]) -> None:
        """Register a function to call with the upper key of each Service that other copies may or may not use from now on."""

        def changed(copy: Object) -> None:
            call(ownership.upper_key(copy))

        def updated(old: Object, new: Object) -> None:
            if (ownership.upper_key(old), _is_external(old)) != (ownership.upper_key(new), _is_external(new)):
                changed(old)
                changed(new)

        def note(old: Object | None, new: Object) -> None:
            before = _ROUTING.among(old.annotations) if old is not None else []
            if _ROUTING.among(new.annotations) != before:
                call(new.key)

        self.caches.lower_services.add_handler(
            on_add=lambda copy, _initial: changed(copy), on_update=updated, on_delete=changed
        )
        self.caches.upper_services.add_handler(on_add=lambda new, _initial: note(None, new), on_update=note)

    def on_foreign_endpoints(self, call: Callable[[str], None]) -> None:
        """Register a function to call with the upper key of each copied Service whose foreign EndpointSlices change."""

        def changed(found: Object) -> None:
            for key in endpoints.lower_service(found):
                copy = self.caches.lower_services.store.get(key)
                if copy is not None:
                    call(ownership.upper_key(copy))

        self.foreign_slices.on_change(changed, changed)

    def foreign_endpoints(self, key: str) -> str:
        """Return what is wrong if others add EndpointSlices to the copy of an upper Service; empty: nothing."""
        service = self.context.lower_key(key)
        found = self.foreign_slices.store.by_index(_SERVICE, service)
        slices = [endpoints.Slice(one.name, one.labels.get(endpoints.LABEL_MANAGED_BY, "")) for one in found]
        return endpoints.message(service, slices)

    def on_namespaces(self, call: Callable[[], None]) -> None:
        """Register a function to call when an upper namespace appears, disappears, or changes its labels."""

        def changed(old: Object, new: Object) -> None:
            if old.labels != new.labels:
                call()

        self.caches.upper_namespaces.add_handler(
            on_add=lambda _new, _initial: call(), on_update=changed, on_delete=lambda _old: call()
        )

    def _users_changed(self, namespace: str) -> None:
        for call in self._for_users:
            call(namespace)

    def _has_service(self, namespace: str, name: str) -> bool:
        # A Service elsewhere with forged labels is not the one that a route reaches.
        copy = self.caches.lower_services.store.get(self.context.lower_key(f"{namespace}/{name}"))
        return copy is not None and self._is_used(copy, namespace)

    async def will_have_service(self, key: str, *, is_wanted: bool) -> bool:
        """Report whether the lower cluster has, or will have, a copy of a Service that the cache does not show. Reads live.

        Args:
            key: the key of the upper Service.
            is_wanted: whether this process makes the copy if it does not exist; it may be replacing the copy now.
        """
        namespace, _, name = self.context.lower_key(key).partition("/")
        copy = await find_listed(self.context.lower, resources.SERVICES, name, namespace=namespace)
        if copy is not None:
            return self._is_used(copy, key.partition("/")[0])
        upper = self.caches.upper_services.store.get(key)
        return (
            is_wanted
            and upper is not None
            and upper.metadata.deletion_timestamp is None
            and not _is_external(upper)
        )

    def _is_used(self, copy: Object, namespace: str) -> bool:
        cluster_id = self.context.cluster_id
        # The Service of the API server is ours, but no copy.
        is_copy = ownership.is_owned_by(copy, cluster_id, namespace) and not api_server.is_ours(
            copy, cluster_id
        )
        return is_copy and not _is_external(copy)

    def _find_pod(self, namespace: str, name: str, uid: str) -> LowerPod | None:
        lower_key = self.context.lower_key(f"{namespace}/{name}")
        return self.backends.find(namespace, name, uid, lower_key=lower_key)

    def _service_annotations(self, namespace: str, name: str) -> Labels:
        service = self.caches.upper_services.store.get(f"{namespace}/{name}")
        return {} if service is None else service.annotations

    def _publishes_unready(self, namespace: str, name: str) -> bool:
        service = self.caches.upper_services.store.get(f"{namespace}/{name}")
        return service is not None and bool((service.spec or {}).get("publishNotReadyAddresses"))

    def _labels_of(self, namespace: str) -> Labels | None:
        found = self.caches.upper_namespaces.store.get(namespace)
        return None if found is None else found.labels


def _is_external(service: Object) -> bool:
    """Report whether a route to a Service would reach any name in the lower cluster's DNS, also Services of others."""
    return (service.spec or {}).get("type") == "ExternalName"


@dataclass(eq=False, repr=False)
class Backends:
    """Knows which lower pods are ready: those of this process, and those that other processes run in the lower cluster.

    Each lower pod is read once per change, because a slice has a hundred endpoints.
    """

    pods: PodCaches
    others: Informer
    """Lower pods for the same upper cluster on virtual nodes of other processes."""
    _states: dict[str, LowerPod] = field(default_factory=dict)
    """By lower uid, without regard to readiness gates."""
    _calls: list[Callable[[str], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Register handlers on the informers."""
        self.pods.lower.on_change(lambda pod: self._changed(pod, _state(pod)), self._gone)
        self.others.on_change(lambda pod: self._changed(pod, _state_of_other(pod)), self._gone)

    def on_change(self, call: Callable[[str], None]) -> None:
        """Register a function to call with the upper uid of each lower pod that becomes another backend, or another state of it."""
        self._calls.append(call)

    def find(self, namespace: str, name: str, uid: str, *, lower_key: str) -> LowerPod | None:
        """Return the lower pod of an upper pod; None: no process runs it in this lower cluster.

        Args:
            namespace: of the upper pod.
            name: of the upper pod.
            uid: of the upper pod; empty: any.
            lower_key: key of the lower pod if another process runs it.
        """
        upper = self.pods.upper_pod(uid) if uid else self.pods.upper_by_name(namespace, name)
        if upper is None:
            return self._of_others(namespace, uid, lower_key)
        if upper.namespace != namespace or (pod := self.pods.lower_of(upper)) is None:
            return None
        if (found := self._states.get(pod.uid)) is None:
            return None
        if found.is_ready and "readinessGates" in upper.field_keys("spec"):
            spec, above, below = upper.spec, upper.status, pod.status
            found = replace(found, is_ready=not unready_gates(spec, above, below))
        return replace(found, is_terminating=True) if upper.metadata.deletion_timestamp is not None else found

    def _of_others(self, namespace: str, uid: str, lower_key: str) -> LowerPod | None:
        # Users who may create pods in the lower namespace can write the labels, but cannot choose the endpoint's address.
        pod = self.others.store.get(lower_key)
        if pod is None or ownership.upper_namespace(pod) != namespace:
            return None
        is_named = not uid or pod.labels.get(names.LABEL_UPPER_UID) == uid
        return self._states.get(pod.uid) if is_named else None

    def _changed(self, pod: Object, state: LowerPod) -> None:
        if self._states.get(pod.uid) != state:
            self._states[pod.uid] = state
            self._call(pod)

    def _gone(self, pod: Object) -> None:
        if self._states.pop(pod.uid, None) is not None:
            self._call(pod)

    def _call(self, pod: Object) -> None:
        if uid := pod.labels.get(names.LABEL_UPPER_UID):
            for call in self._calls:
                call(uid)


def _state(pod: Object) -> LowerPod:
    status = pod.status or {}
    return LowerPod(
        pod.namespace,
        pod.name,
        pod.uid,
        pod.node_name,
        is_ready=is_true(status, "Ready") and not is_finished(status),
        is_terminating=pod.metadata.deletion_timestamp is not None,
    )


def _state_of_other(pod: Object) -> LowerPod:
    state = _state(pod)
    if state.is_ready and names.ANNOTATION_READINESS_GATES in pod.annotations:
        state = replace(state, is_ready=None)  # the upper pod decides, which this process does not have
    addresses = frozenset(str(one.get("ip")) for one in (pod.status or {}).get("podIPs") or ())
    return replace(state, addresses=addresses)


GRACE = 60.0
"""Seconds for which copies are kept after the last pod of their namespace is gone, because the next rollout
may use them."""


@dataclass(eq=False, repr=False)
class NamespaceUsers:
    """Uids of upper pods by namespace; reports when a namespace gets its first pod and loses its last."""

    pods: Iterable[Informer]
    """The informers of upper pods of our virtual nodes."""
    on_change: Callable[[str], None]
    """Called with a namespace when it gets its first pod or loses its last."""
    _uids: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _ends: dict[str, float] = field(default_factory=dict)
    """Namespace without pods → loop time until which its copies stay."""

    def __post_init__(self) -> None:
        """Register handlers on the informers."""
        for informer in self.pods:
            informer.add_handler(on_add=self._came, on_delete=self._left)

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._uids

    def grace(self, namespace: str) -> float:
        """Return the remaining seconds for which a namespace without pods keeps its copies; 0: none.

        The grace period begins with the first call after the namespace lost its last pod, or after a restart.
        """
        now = asyncio.get_running_loop().time()
        return max(0.0, self._ends.setdefault(namespace, now + GRACE) - now)

    def _came(self, pod: Object, _initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        is_first = pod.namespace not in self._uids
        self._uids[pod.namespace].add(pod.uid)
        if is_first:
            self._ends.pop(pod.namespace, None)
            self.on_change(pod.namespace)

    def _left(self, pod: Object) -> None:
        uids = self._uids[pod.namespace]
        uids.discard(pod.uid)
        if not uids:
            del self._uids[pod.namespace]
            self.on_change(pod.namespace)


class UnusedCopies:
    """Remembers the lower uids of copies that may be deleted because none of our pods uses them.

    A copy with another uid than at the first call was recreated by another process, for pods that have no lower pods yet.
    It is not deleted, because that process would recreate it again and again.
    """

    def __init__(self) -> None:
        self._uids: dict[str, dict[str, str]] = {}

    def may_remove(self, key: str, copy: Object) -> bool:
        """Report whether to delete a copy of the upper object or namespace ``key`` that none of our pods uses."""
        return self._uids.setdefault(key, {}).setdefault(copy.namespace, copy.uid) == copy.uid

    def needed(self, key: str, namespace: str) -> None:
        """Record that our pods need the copy in a lower namespace again."""
        self._uids.get(key, {}).pop(namespace, None)

    def forget(self, key: str) -> None:
        """Forget the copies of an upper object or namespace, because it is gone."""
        self._uids.pop(key, None)


@dataclass(eq=False, slots=True)
class _Entry:
    """A selector and the namespaces that it matches."""

    matches: Matcher
    names: int = 0
    """Bit ``n`` is set if the namespace with number ``n`` matches."""
    version: int = -1
    """Number of changes of namespaces that ``names`` contains; -1: not evaluated yet."""
    users: int = 0
    """Number of objects that have the selector."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class _Names(Collection[str]):
    """Names of the set bits. The length is known without the names, because most selections are too long or empty."""

    bits: int
    names: Sequence[str]

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[str]:
        if not self.bits:
            return iter(())
        return (name for bit, name in zip(reversed(f"{self.bits:b}"), self.names, strict=False) if bit == "1")

    def __contains__(self, name: object) -> bool:
        return any(name == other for other in self)


@dataclass(eq=False, repr=False)
class SelectedNamespaces:
    """Keeps the result of each selector that objects have."""

    labels_of: Callable[[str], Labels | None]
    """Returns the labels of an upper namespace; None: it does not exist."""
    is_allowed: Callable[[str], bool]
    """Whether an upper namespace may use the lower cluster; others are never selected."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    """Namespaces by number; empty: the number is free."""
    _free: list[int] = field(default_factory=list)
    _changes: list[int] = field(default_factory=list)
    """Numbers of namespaces that changed, oldest first."""
    _forgotten: int = 0
    """Number of changes before the first one in ``_changes``."""
    _entries: dict[bytes, _Entry] = field(default_factory=dict)
    _held: dict[str, tuple[str, frozenset[bytes]]] = field(default_factory=dict)
    """By object: its namespace and selectors."""
    _counts: dict[str, Counter[bytes]] = field(default_factory=dict)
    """By namespace: how many of its objects have each selector."""

    def changed(self, name: str) -> None:
        """Record that an upper namespace appeared, disappeared, or changed its labels."""
        exists = self.labels_of(name) is not None
        number = self._numbers.get(name)
        if number is None:
            if not exists or not self.is_allowed(name):
                return
            number = self._free.pop() if self._free else len(self._names)
            self._names[number : number + 1] = [name]
            self._numbers[name] = number
        elif not exists:
            del self._numbers[name]
            self._names[number] = ""
            self._free.append(number)
        self._changes.append(number)
        if len(self._changes) > 2 * max(_MOST_CHANGES, len(self._names)):
            count = len(self._changes) // 2
            del self._changes[:count]
            self._forgotten += count

    async def hold(self, user: str, namespace: str, selectors: Iterable[Selector]) -> bool:
        """Evaluate the selectors of an object and keep the results until ``release``.

        Returns:
            False: the objects of the namespace have too many different selectors, so some have no result.

        Raises:
            ValueError: a selector is malformed.
        """
        wanted = {selector_code(selector): selector for selector in selectors}
        compiled = {
            code: compile_selector(selector) for code, selector in wanted.items() if code not in self._entries
        }
        others = self._without(user, namespace)
        room = MOST_SELECTORS_OF_NAMESPACE - len(others)
        admitted = []
        for code in wanted:
            if code not in others:
                room -= 1
            if code in others or room >= 0:
                admitted.append(code)
        before = self._held.get(user)
        for code in admitted:
            if code not in self._entries:
                self._entries[code] = _Entry(compiled[code])
            self._entries[code].users += 1
            self._counts.setdefault(namespace, Counter())[code] += 1
        if before is not None:
            self._drop(*before)
        if admitted:
            self._held[user] = (namespace, frozenset(admitted))
        else:
            self._held.pop(user, None)
        slicer = Slicer()
        for code in admitted:
            if (entry := self._entries.get(code)) is not None:
                await self._evaluate(entry, slicer)
        return len(admitted) == len(wanted)

    def release(self, user: str) -> None:
        """Forget the selectors of an object."""
        if (before := self._held.pop(user, None)) is not None:
            self._drop(*before)

    def select(self, selector: Selector) -> Collection[str] | None:
        """Return the allowed upper namespaces that a selector matches now; None: no object holds the selector.

        Read the result before the next change of a namespace.
        """
        entry = self._entries.get(selector_code(selector))
        if entry is None or entry.version < self._forgotten:
            return None
        self._catch_up(entry)
        return _Names(entry.names, self._names)

    def _without(self, user: str, namespace: str) -> set[bytes]:
        """Return the selectors of the other objects of a namespace."""
        counts = self._counts.get(namespace) or Counter()
        _, own = self._held.get(user, ("", frozenset[bytes]()))
        return {code for code, count in counts.items() if count > (code in own)}

    def _drop(self, namespace: str, codes: Iterable[bytes]) -> None:
        counts = self._counts[namespace]
        for code in codes:
            counts[code] -= 1
            if not counts[code]:
                del counts[code]
            entry = self._entries[code]
            entry.users -= 1
            if not entry.users:
                del self._entries[code]
        if not counts:
            del self._counts[namespace]

    async def _evaluate(self, entry: _Entry, slicer: Slicer) -> None:
        async with entry.lock:
            while entry.version < self._forgotten + len(self._changes):
                if entry.version >= self._forgotten:
                    self._catch_up(entry, _AT_ONCE)
                    await slicer.tick()
                    continue
                # Namespaces that change meanwhile are among the changes since ``version``.
                version, names = self._forgotten + len(self._changes), 0
                for number, name in enumerate([*self._names]):
                    if self._matches(entry, name):
                        names |= 1 << number
                    await slicer.tick()
                entry.names, entry.version = names, version

    def _catch_up(self, entry: _Entry, most: int | None = None) -> None:
        start = entry.version - self._forgotten
        changes = self._changes[start : None if most is None else start + most]
        for number in {*changes}:
            bit = 1 << number
            entry.names = (
                entry.names | bit if self._matches(entry, self._names[number]) else entry.names & ~bit
            )
        entry.version += len(changes)

    def _matches(self, entry: _Entry, name: str) -> bool:
        labels = self.labels_of(name) if name else None
        return labels is not None and entry.matches(labels)
