"""The lower pods that endpoints of Services name, with what the copies of EndpointSlices contain of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from clusterset.model import names
from clusterset.model.pod.conditions import is_finished, is_true
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import PodCaches
from virtual_node.translate.base import ownership
from virtual_node.translate.base.view import LowerPod
from virtual_node.translate.pods.status import unready_gates


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
        (pod.spec or {}).get("nodeName", ""),
        is_ready=is_true(status, "Ready") and not is_finished(status),
        is_terminating=pod.metadata.deletion_timestamp is not None,
    )


def _state_of_other(pod: Object) -> LowerPod:
    state = _state(pod)
    if state.is_ready and names.ANNOTATION_READINESS_GATES in pod.annotations:
        state = replace(state, is_ready=None)  # the upper pod decides, which this process does not have
    addresses = frozenset(str(one.get("ip")) for one in (pod.status or {}).get("podIPs") or ())
    return replace(state, addresses=addresses)
