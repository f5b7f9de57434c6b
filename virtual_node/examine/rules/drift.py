"""Rules about copies: lower pods, ConfigMaps and Secrets that differ from their upper objects.

Drift is what the virtual node's translation would change now. Findings show keys and never values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterset.model import names
from clusterset.model.overrides import OverrideSet
from clusterset.model.policy.decision import Violation, summary
from controller_runtime.apimachinery import readable
from virtual_node.examine.clusters import SETTINGS, owned
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.finding import Findings
from virtual_node.examine.mirrored import MirroredPod, MirroredRule
from virtual_node.examine.objects import annotations_of, is_deleting, key, labels_of
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.translate.base import view
from virtual_node.translate.base.metadata import left_as_changed
from virtual_node.translate.kinds import CONFIG_MAPS, SECRETS, Kind
from virtual_node.translate.pods import update
from virtual_node.translate.pods.update import ChangePolicy, PodChanges

_BOOKKEEPING = (names.ANNOTATION_APPLIED, names.ANNOTATION_OVERRIDES)


@rule(Code.DRIFT, Code.POLICY_VIOLATED, level=Level.MIRRORED)
class PodDrift(MirroredRule):
    """Finds lower pods whose mutable fields differ from their upper pods.

    A field that was already requested is not sent again. If it still differs, lower admission has changed
    it: one finding per cluster for images, tolerations and deadlines. Resources may also differ because a
    resize was refused.
    """

    name = "pod_drift"

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._rewritten: dict[View, list[str]] = {}
        """Keys of pods that lower admission has changed, by cluster."""
        self._labelled: dict[View, list[str]] = {}
        """Pods, and labels or annotations of them that were changed in the lower cluster, by cluster."""

    def of_pod(self, pod: MirroredPod) -> Findings:
        """Yield the finding about a pod, or remember that lower admission has changed it."""
        upper, below = pod.upper, pod.below
        if below is None or is_deleting(upper) or is_deleting(below) or pod.likeness in self.faultless:
            return
        changes = update.pod_patch(below, pod.desired, upper, pod.options)
        left = left_as_changed(below["metadata"], pod.desired["metadata"])
        if changes == PodChanges() and not left:
            if pod.likeness:
                self.faultless.add(pod.likeness)
            return
        in_spec, resized = _spec_fields(changes), _resized_fields(changes)
        asked = update.is_already_requested(below, pod.desired)
        if asked and any(names.ANNOTATION_OVERRIDES in annotations_of(each) for each in (below, pod.desired)):
            in_spec, resized = [], []  # a changed override applies to new pods only
        if asked and in_spec:
            self._rewritten.setdefault(pod.lower, []).append(key(below))
            in_spec = []
        if left:
            told = f"{key(below)} {readable.some(left)}"
            self._labelled.setdefault(pod.lower, []).append(told)
        added = []
        if changes.ephemeral_containers:
            allowed, refused = _debuggers(pod, changes)
            added = ["spec.ephemeralContainers"] if allowed else []
            if refused:
                cause = f"its policy refuses debug containers: {summary(refused)}"
                step = (
                    "a debug container cannot be removed; add another one with a profile that the policy allows "
                    "(kubectl debug --profile)"
                )
                yield pod.lower.finding(Code.POLICY_VIOLATED, "Pod", key(upper), cause, step, Severity.INFO)
        differing = in_spec + resized + added + _metadata_fields(changes)
        if not differing:
            return
        severe = bool(in_spec or added or (resized and not asked))
        cause = f"differs from upper pod {key(upper)} in {readable.some(differing, limit=5)}"
        step = (
            "if the lower cluster refuses the change, the upper pod has an event UpdateRefused; "
            "otherwise see the virtual node's log"
        )
        severity = Severity.ERROR if severe else Severity.WARNING
        yield pod.lower.finding(Code.DRIFT, "Pod", key(below), cause, step, severity, transient=True)

    def of_all(self) -> Findings:
        """Yield a finding for each lower cluster with pods that its admission has changed."""
        for lower, pods in self._rewritten.items():
            cause = (
                "its admission has changed images, tolerations or deadlines of "
                f"{readable.count(len(pods), 'pod')}, and the virtual node leaves them: {readable.some(pods, limit=5)}"
            )
            yield lower.finding(Code.DRIFT, "Cluster", lower.name, cause, severity=Severity.INFO)
        for lower, pods in self._labelled.items():
            cause = (
                f"labels or annotations of {readable.count(len(pods), 'pod')} were set or changed there, and the virtual "
                f"node leaves them until they change in the upper cluster: {readable.some(pods)}"
            )
            name = f"{lower.name} metadata"
            yield lower.finding(Code.DRIFT, "Cluster", name, cause, severity=Severity.INFO)


def _debuggers(pod: MirroredPod, changes: PodChanges) -> tuple[bool, list[Violation]]:
    """Return whether the policy allows missing debug containers, and its violations by the refused ones."""
    assert pod.below is not None
    plain = replace(pod.options, overrides=OverrideSet())
    requested = update.pod_patch(pod.below, pod.requested, pod.upper, plain)
    rules = pod.options.policy.of(pod.upper["metadata"]["namespace"])
    allowed, refused = ChangePolicy(pod.below, rules).debug_containers(
        changes.debug_containers, requested.debug_containers
    )
    return bool(allowed), refused


@rule(Code.DRIFT, where=[SETTINGS], level=Level.LOWER)
def copy_drift(snapshot: Snapshot, lower: View) -> Findings:
    """Yield lower ConfigMaps and Secrets whose data differs from their upper source."""
    for copied in (CONFIG_MAPS, SECRETS) if lower[SETTINGS].nodes else ():
        kind = copied.kind
        sources = {key(each): each for each in snapshot.upper.of(kind)}
        for copy in owned(snapshot, lower, kind) if sources else ():
            if names.LABEL_TOKEN_OF in labels_of(copy) or is_deleting(copy):
                continue
            source = sources.get(_source_key(copy))
            if source is None or source["metadata"]["uid"] != labels_of(copy).get(names.LABEL_UPPER_UID):
                continue  # The source is gone or was replaced; the rule for leaks reports it.
            if differing := _data_fields(copied, copy, source, lower):
                cause = f"differs from upper {kind} {key(source)} in {readable.some(differing, limit=5)}"
                step = (
                    "does the virtual node's process run? A copy that no pod references is not "
                    "updated: delete it in the lower cluster"
                )
                yield lower.finding(Code.DRIFT, kind, key(copy), cause, step, transient=True)


def _source_key(copy: Mapping[str, Any]) -> str:
    metadata, annotations = copy["metadata"], annotations_of(copy)
    namespace = annotations.get(names.ANNOTATION_UPPER_NAMESPACE, metadata["namespace"])
    return f"{namespace}/{annotations.get(names.ANNOTATION_SOURCE, metadata['name'])}"


def _data_fields(kind: Kind, copy: Mapping[str, Any], source: Mapping[str, Any], lower: View) -> list[str]:
    # The view only affects namespaces and owners, which are not compared.
    desired = kind.copy_of(source, view.View(cluster_id="", nodes=tuple(lower[SETTINGS].nodes)))
    patch = (kind.patch(copy, desired, source) if desired is not None else None) or {}
    found: list[str] = []
    for field in ("data", "binaryData"):
        if field not in patch:
            continue
        is_there, wanted = copy.get(field) or {}, source.get(field) or {}
        keys = sorted({*is_there, *wanted})
        found += [f"{field}[{name}]" for name in keys if is_there.get(name) != wanted.get(name)]
    return found + [field for field in ("type", "immutable") if field in patch]


def _spec_fields(changes: update.PodChanges) -> list[str]:
    spec = (changes.metadata_and_spec or {}).get("spec") or {}
    others = [f"spec.{field}" for field in ("activeDeadlineSeconds", "tolerations") if field in spec]
    return _of_containers(spec, "image") + others


def _resized_fields(changes: update.PodChanges) -> list[str]:
    spec = (changes.resize or {}).get("spec") or {}
    return _of_containers(spec, "resources") + (["spec.resources"] if "resources" in spec else [])


def _of_containers(spec: Mapping[str, Any], field: str) -> list[str]:
    return [
        f"spec.{kind}[{container['name']}].{field}"
        for kind in ("containers", "initContainers")
        for container in spec.get(kind) or ()
    ]


def _metadata_fields(changes: update.PodChanges) -> list[str]:
    found: list[str] = []
    for field, change in ((changes.metadata_and_spec or {}).get("metadata") or {}).items():
        # Our own bookkeeping annotations change with other fields, so they are not reported.
        found += [f"metadata.{field}[{name}]" for name in sorted(change) if name not in _BOOKKEEPING]
    return found
