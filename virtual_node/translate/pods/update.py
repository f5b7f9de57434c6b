"""Plans the changes that make a running lower pod match its upper pod, as far as its lower cluster's policy allows.

A change may not add a violation of the policy. Violations that the running pod already has do not make other changes fail.

Kubernetes allows few changes of a running pod: labels, annotations, images, activeDeadlineSeconds, added
tolerations and their seconds, resources (``pods/resize``) and ephemeral containers (``pods/ephemeralcontainers``). The
annotation ``applied`` records which labels and annotations we sent (``base.metadata``), so those that the lower cluster has
set or changed stay. It also records a digest of the spec that was requested.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from clusterset.model import names
from clusterset.model.overrides import OverrideSet
from clusterset.model.pod import api_access
from clusterset.model.policy import decision
from clusterset.model.policy.decision import Violation, summary, violations
from clusterset.model.policy.rules import DEBUG_CONTAINERS, Effective, field_of
from clusterset.model.policy.scheduling import keep_off_control_plane
from controller_runtime.apimachinery import quantity
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from controller_runtime.objects import Object, texts_memory
from virtual_node.translate.base.metadata import applied, metadata_patch, recorded_digests, render_record
from virtual_node.translate.base.ownership import made_for
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods.lower_pod import (
    SPEC_CONTAINERS,
    ephemeral_containers,
    lower_pod,
    overridden,
    stays_above,
)

Patch = Mapping[str, Any]
Pairs = list[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""The current and the desired container of each name that both specs have."""
Unchanged = frozenset[tuple[str, str, str]]
"""List, name and field of containers, where the field has been requested before; the pod's own resources have empty names."""
_OPTIONAL = (names.ANNOTATION_TRIPPED_LABELS, names.ANNOTATION_OVERRIDES)
"""Our annotations that only some lower pods have."""
_SECONDS = "tolerationSeconds"
_RESOURCES = "resources"
_OWN_NAMES = (b'"fieldPath":"metadata.name"', b'"fieldPath":"metadata.uid"')
"""References of a spec to the pod's own name or uid."""


class ChangePolicy:
    """The policy for changes of one lower pod.

    Args:
        lower: the current lower pod.
        rules: the rules for the pod's upper namespace.
    """

    def __init__(self, lower: Mapping[str, Any], rules: Effective) -> None:
        self._lower = lower
        self._rules = rules

    def debug_containers(
        self, added: Sequence[Patch], requested: Sequence[Patch]
    ) -> tuple[list[Patch], list[Violation]]:
        """Return the debug containers that are allowed, and the violations of the others.

        Each is allowed or refused alone, because users cannot remove a refused container.

        Args:
            added: debug containers that the lower pod does not have.
            requested: the same without overrides, to which the policy applies; empty: there are no overrides.
        """
        if not added:
            return [], []
        refused = self._new_violations("spec", {"ephemeralContainers": requested or added})
        # All debug containers are checked in one call. One call for each would take quadratic time, and a pod can
        # have thousands.
        forbidden = {one.field.removeprefix(DEBUG_CONTAINERS).partition("]")[0] for one in refused}
        if any(not one.field.startswith(DEBUG_CONTAINERS) for one in refused):
            return [], refused
        return [container for container in added if container["name"] not in forbidden], refused

    def metadata(self, patch: Patch, requested: Patch) -> tuple[Patch, list[Violation]]:
        """Return a patch of metadata and spec without forbidden labels and annotations, and their violations.

        Each key is allowed or refused alone, and its removal is always allowed.

        Args:
            patch: the patch.
            requested: the patch without overrides, to which the policy applies.
        """
        refused: list[Violation] = []
        for field in ("labels", "annotations"):
            sent, wanted = ((part.get("metadata") or {}).get(field) for part in (patch, requested))
            if not sent or not wanted:
                continue
            current = self._lower["metadata"].get(field) or {}
            carried = {key: value for key, value in {**current, **wanted}.items() if value is not None}
            added = self._new_violations("metadata", {field: carried})
            fields = {violation.field for violation in added}
            own = {key for key in wanted if key in sent and sent[key] == wanted[key]}
            forbidden = {key for key in own if decision.metadata_field(field, key) in fields}
            patch = without_keys(patch, field, forbidden, self._annotations)
            refused += added
        return patch, refused

    def spec(self, patch: Patch, requested: Patch) -> tuple[Patch, list[Violation]]:
        """Return a patch of metadata and spec without a forbidden spec, and its violations.

        The changes of the spec are allowed or refused together. The lower pod's annotation does not record a refused
        change as requested, so the change is tried again.

        Args:
            patch: the patch.
            requested: the patch without overrides, to which the policy applies.
        """
        if not patch.get("spec"):
            return patch, []
        current = self._lower["spec"]
        of_user = _patched(current, requested.get("spec") or {})
        refused = [
            *self._new_violations("spec", of_user),
            *self._opens_control_plane(_patched(current, patch["spec"])),
        ]
        if not refused:
            return patch, []
        kept = {field: change for field, change in patch.items() if field != "spec"}
        return without_note(kept, self._annotations), refused

    @property
    def _annotations(self) -> Mapping[str, str]:
        return self._lower["metadata"].get("annotations") or {}

    @functools.cached_property
    def _before(self) -> set[Violation]:
        return set(violations(self._lower, self._rules))

    def _new_violations(self, field: str, changed: Mapping[str, Any]) -> list[Violation]:
        """Return the violations that the lower pod would have after a change of its spec or metadata, and has not now."""
        after = violations({**self._lower, field: {**self._lower[field], **changed}}, self._rules)
        return [one for one in after if one not in self._before]

    def _opens_control_plane(self, changed: Mapping[str, Any]) -> list[Violation]:
        """Return a violation if new tolerations would let a pod that is not bound yet run on control-plane nodes.

        A new pod with such tolerations gets an affinity that excludes these nodes, but the affinity of an
        existing pod cannot change.
        """
        spec = {**self._lower["spec"], **changed}
        is_bound = bool(spec.get("nodeName"))
        if "tolerations" not in changed or is_bound or keep_off_control_plane(spec, self._rules) == spec:
            return []
        source = self._rules.sources["control_plane"]
        rule = field_of("control_plane")
        return [Violation(rule, "spec.tolerations", "every taint", "no control-plane nodes", source)]


def _patched(current: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec fields that a patch of ``pod_patch`` changes, with their new values."""
    changed: dict[str, Any] = {}
    for field, value in patch.items():
        if field in {"containers", "initContainers"}:
            images = {container["name"]: container for container in value}
            changed[field] = [
                {**container, **images.get(container["name"], {})} for container in current.get(field) or ()
            ]
        else:
            changed[field] = value
    return changed


_MOST_KNOWN = 1000
"""Maximum pairs that ``KnownPairs`` remembers, each in about 150 bytes."""
_FIRST_GENERATION = 1
"""Generation of a pod whose spec never changed since its creation (KEP-5067; 0 on API servers without it)."""


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """The changes of a lower pod."""

    upper_pod: dict[str, Any]
    changes: PodChanges
    """The changes that the policy allows. Debug containers have no Service variables yet."""
    refused: list[Violation]
    """Why the other changes are not allowed."""
    budget: TranslationBudget
    """What is left for the Service variables."""

    @property
    def is_spec_refused(self) -> bool:
        """Report whether a change of the spec is not allowed."""
        return any(not one.field.startswith("metadata.") for one in self.refused)

    @property
    def refusal(self) -> str:
        """Return why changes are not allowed, for users; empty: all are allowed."""
        return f"its policy does not allow the change: {summary(self.refused)}" if self.refused else ""


class KnownPairs:
    """Recognizes pods whose lower pod needs no change, because another pod of their workload needed none.

    It belongs to one virtual node, because its translation options must stay the same.
    """

    def __init__(self) -> None:
        self._keys: set[tuple[bytes, bool]] = set()

    def __contains__(self, key: tuple[bytes, bool]) -> bool:
        return key in self._keys

    def add(self, key: tuple[bytes, bool]) -> None:
        """Record the key of a pair without changes."""
        if len(self._keys) >= _MOST_KNOWN:
            self._keys.clear()
        self._keys.add(key)


def plan(
    above: Object,
    below: Object,
    options: PodOptions,
    rules: Effective,
    *,
    before: Object | None = None,
    was_resized: bool = False,
    known: KnownPairs | None = None,
) -> SpecPlan:
    """Compare a lower pod with the translation of its upper pod.

    Args:
        above: the upper pod.
        below: the lower pod.
        options: translation options.
        rules: the policy for the upper namespace.
        before: an earlier state of the upper pod that the lower pod had, so that lower admission has changed what differs and is
            the same in both states; None: unknown.
        was_resized: a resize was sent that the lower pod does not record as requested.
        known: pairs that needed no change with these options; this pair is added if it needs none. None: none is known.

    Raises:
        TooLargeError: the translation exceeds its budget.
    """
    upper, lower, budget = above.to_dict(), below.to_dict(), TranslationBudget()
    is_as_created = above.metadata.generation == _FIRST_GENERATION
    key = None
    if known is not None and not was_resized and not options.overrides.of(upper):
        alike = likeness(lower, upper, options)
        key = None if alike is None else (alike, is_as_created)
        if key is not None and key in known:
            return SpecPlan(upper, PodChanges(), [], budget)
    requested = lower_pod(upper, options, budget)
    desired = overridden(requested, upper, options, budget)
    unchanged = unchanged_fields(before.to_dict(), upper) if before is not None else frozenset()
    changes = pod_patch(lower, desired, upper, options, budget, unchanged=unchanged)
    main: Mapping[str, Any] = changes.metadata_and_spec or {}
    resize = changes.resize
    if not was_resized and is_already_requested(lower, desired, is_as_created=is_as_created):
        main, resize = without_spec(main), None
    # The policy applies to the changes without overrides.
    asked, asked_main = changes, main
    if names.ANNOTATION_OVERRIDES in desired["metadata"]["annotations"]:
        plain = replace(options, overrides=OverrideSet())
        asked = pod_patch(lower, requested, upper, plain, unchanged=unchanged)
        asked_main = asked.metadata_and_spec or {}
    policy = ChangePolicy(lower, rules)
    debugging, of_debugging = policy.debug_containers(changes.debug_containers, asked.debug_containers)
    main, of_metadata = policy.metadata(main, asked_main)
    main, of_spec = policy.spec(main, asked_main)
    allowed = PodChanges(
        dict(main) or None, resize, {"spec": {"ephemeralContainers": debugging}} if debugging else None
    )
    refused = [*of_debugging, *of_metadata, *of_spec]
    if known is not None and key is not None and allowed == PodChanges() and not refused:
        known.add(key)
    return SpecPlan(upper, allowed, refused, budget)


@dataclass(frozen=True, slots=True)
class PodChanges:
    """Strategic merge patches for a lower pod; None: no change."""

    metadata_and_spec: dict[str, Any] | None = None
    resize: dict[str, Any] | None = None
    ephemeral_containers: dict[str, Any] | None = None

    @property
    def debug_containers(self) -> list[Mapping[str, Any]]:
        """Return the debug containers to add."""
        return (self.ephemeral_containers or {"spec": {}})["spec"].get("ephemeralContainers") or []


def growth(lower: Object, changes: PodChanges) -> int:
    """Return how many bytes of memory a lower pod needs more after changes, at most; negative: it shrinks."""
    patches = [changes.metadata_and_spec or {}, changes.ephemeral_containers or {}]
    added = sum(len(msgspec.json.encode(patch["spec"])) for patch in patches if patch.get("spec"))
    for field, before in (("labels", lower.labels), ("annotations", lower.annotations)):
        changed = (patches[0].get("metadata") or {}).get(field) or {}
        after = {key: text for key, text in changed.items() if text is not None}
        added += texts_memory(after) - texts_memory({key: before[key] for key in changed if key in before})
    return added


def pod_patch(
    lower: Mapping[str, Any],
    desired: Mapping[str, Any],
    upper: Mapping[str, Any],
    options: PodOptions,
    budget: TranslationBudget | None = None,
    *,
    unchanged: Unchanged = frozenset(),
) -> PodChanges:
    """Return the patches that turn a lower pod into the pod that ``overridden`` would create now.

    Args:
        lower: the current lower pod.
        desired: the result of ``overridden``.
        upper: the upper pod.
        options: translation options.
        budget: as in ``lower_pod``.
        unchanged: images and resources that stay as they are.

    Raises:
        TooLargeError: the translation of the debug containers exceeds the budget.
    """
    patch: dict[str, Any] = {}
    stays = stays_above(upper, options)
    if metadata := metadata_patch(
        lower["metadata"], desired["metadata"], removable={"annotations": _OPTIONAL}, stays=stays
    ):
        patch["metadata"] = metadata
    containers = {kind: _pairs(lower["spec"], desired["spec"], kind) for kind in SPEC_CONTAINERS}
    if spec := _spec_patch(lower["spec"], desired["spec"], containers, unchanged):
        patch["spec"] = spec
    resize = _resize_patch(lower["spec"], desired["spec"], containers, unchanged)
    ephemeral = _ephemeral_patch(lower["spec"], ephemeral_containers(upper, options, budget))
    return PodChanges(patch or None, resize, ephemeral)


def unchanged_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> Unchanged:
    """Return the images and resources that are the same in two states of an upper pod."""
    found: set[tuple[str, str, str]] = set()
    for kind in SPEC_CONTAINERS:
        found |= {
            (kind, earlier["name"], field)
            for earlier, later in _pairs(before["spec"], after["spec"], kind)
            for field in ("image", _RESOURCES)
            if earlier.get(field) == later.get(field)
        }
    if before["spec"].get(_RESOURCES) == after["spec"].get(_RESOURCES):
        found.add(("", "", _RESOURCES))
    return frozenset(found)


def likeness(lower: Mapping[str, Any], upper: Mapping[str, Any], options: PodOptions) -> bytes | None:
    """Return a key of an upper and its lower pod; pairs with equal keys have equal results of ``pod_patch``.

    The pods of one workload have equal keys if they differ only in what is not compared: names, uids, statuses, the name of the
    volume with the token, and what the lower cluster adds to metadata and spec. The key also decides the violations of the
    policy by ``lower_pod``, but not the fields of their messages.

    Args:
        lower: the lower pod.
        upper: the upper pod.
        options: translation options; keys of the same virtual node at other options cannot be compared.

    Returns:
        The key. None: the lower pod does not have the marks of this upper pod.
    """
    above, below, spec = upper["metadata"], lower["metadata"], lower["spec"]
    labels, annotations = dict(below.get("labels") or {}), dict(below.get("annotations") or {})
    mark = annotations.pop(names.ANNOTATION_MADE_FOR, None)
    if labels.pop(names.LABEL_UPPER_UID, None) != above["uid"] or mark != made_for(
        options.owner.cluster_id, above
    ):
        return None
    wanted = {"labels": above.get("labels") or {}, "annotations": dict(above.get("annotations") or {})}
    wanted["annotations"].pop(names.ANNOTATION_LOWER_UID, None)
    if not options.overrides.of(upper):
        # What neither the user nor we have set is not compared. Our keys have our domain, or none.
        record = annotations.get(names.ANNOTATION_APPLIED, "")
        for current, of_user in ((labels, wanted["labels"]), (annotations, wanted["annotations"])):
            for name in current.keys() - of_user.keys():
                if "/" in name and not names.is_reserved(name) and f'"{name}"' not in record:
                    del current[name]
    compared = [
        (kind, [(one["name"], one.get("image"), one.get("resources")) for one in spec.get(kind) or ()])
        for kind in SPEC_CONTAINERS
    ]
    debuggers = [one["name"] for one in spec.get("ephemeralContainers") or ()]
    fields = [spec.get(name) for name in ("activeDeadlineSeconds", "tolerations", "resources")]
    text = msgspec.json.encode(
        (above["namespace"], wanted, upper["spec"], labels, annotations, compared, debuggers, fields)
    )
    if any(reference in text for reference in _OWN_NAMES):
        text += msgspec.json.encode((above["name"], above["uid"]))
    for volume in upper["spec"].get("volumes") or ():
        name = volume.get("name") or ""
        if name.startswith(api_access.PREFIX):  # the rest is random
            text = text.replace(b'"%s"' % name.encode(), b'"%s"' % api_access.PREFIX.encode())
    return hashlib.blake2b(text, digest_size=16).digest()


def is_already_requested(
    lower: Mapping[str, Any], desired: Mapping[str, Any], *, is_as_created: bool = False
) -> bool:
    """Report whether the desired spec was already requested, when the lower pod was created or last changed.

    If the lower pod still differs, lower admission changed it (a registry mirror, a LimitRange, an
    autoscaler). Sending the same change again would restart its containers.

    Args:
        lower: the lower pod.
        desired: the result of ``lower_pod``.
        is_as_created: whether the upper spec has never changed. Then a lower pod without a record of the
            requested spec, which earlier releases did not write, was created with the desired spec.
    """
    asked = applied(lower["metadata"]).get("spec")
    return is_as_created if asked is None else asked == applied(desired["metadata"]).get("spec")


def without_note(patch: Mapping[str, Any], current: Mapping[str, str]) -> dict[str, Any]:
    """Return a patch of ``pod_patch`` that does not record the spec as requested, so that it is requested again.

    The lower pod keeps its previous record. If the patch changes the spec, the record is emptied, so that later
    neither the previous nor the desired spec counts as requested.

    Args:
        patch: patch of metadata and spec; may be empty.
        current: the lower pod's annotations.
    """
    metadata = patch.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if names.ANNOTATION_APPLIED not in annotations:
        return dict(patch)
    note = applied(metadata)
    note.pop("spec", None)
    if "spec" in patch:
        note["spec"] = ""
    elif "spec" in (before := applied({"annotations": current})):
        note["spec"] = before["spec"]
    return _with_annotations(patch, {**annotations, names.ANNOTATION_APPLIED: render_record(note)})


def without_spec(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a patch of ``pod_patch`` without its changes of the spec and of the annotation that records overrides."""
    kept = {field: change for field, change in patch.items() if field != "spec"}
    annotations = (kept.get("metadata") or {}).get("annotations") or {}
    if names.ANNOTATION_OVERRIDES not in annotations:
        return kept
    rest = {key: value for key, value in annotations.items() if key != names.ANNOTATION_OVERRIDES}
    return _with_annotations(kept, rest)


def without_keys(
    patch: Mapping[str, Any], field: str, keys: Collection[str], current: Mapping[str, str]
) -> dict[str, Any]:
    """Return a patch of ``pod_patch`` that neither sets some labels or annotations nor adds them to our record.

    A recorded key is removed when the upper pod no longer has it. Therefore a key that a program in the lower
    cluster has set must not be recorded, and one that we recorded earlier must stay recorded.

    Args:
        patch: patch of metadata and spec.
        field: ``labels`` or ``annotations``.
        keys: these keys; empty: the patch is returned unchanged.
        current: the lower pod's annotations.
    """
    if not keys:
        return dict(patch)
    metadata = dict(patch["metadata"])
    metadata[field] = {key: value for key, value in metadata[field].items() if key not in keys}
    annotations = dict(metadata.get("annotations") or {})
    if names.ANNOTATION_APPLIED in annotations:
        note = applied(metadata)
        ours = recorded_digests(applied({"annotations": current}), field)
        kept = {key: digest for key, digest in note[field].items() if key not in keys}
        note[field] = {**kept, **{key: ours[key] for key in keys if key in ours}}
        annotations[names.ANNOTATION_APPLIED] = render_record(note)
        if applied({"annotations": current}) == note:
            del annotations[names.ANNOTATION_APPLIED]
    return _with_annotations({**patch, "metadata": metadata}, annotations)


def _with_annotations(patch: Mapping[str, Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return a patch with these annotations instead of its own, without empty parts."""
    metadata = {**(patch.get("metadata") or {}), "annotations": annotations}
    kept = {**patch, "metadata": {field: change for field, change in metadata.items() if change}}
    return {field: change for field, change in kept.items() if change}


def _pairs(lower: Mapping[str, Any], desired: Mapping[str, Any], kind: str) -> Pairs:
    current = {container["name"]: container for container in lower.get(kind) or ()}
    return [
        (current[container["name"]], container)
        for container in desired.get(kind) or ()
        if container["name"] in current
    ]


def _spec_patch(
    lower: Mapping[str, Any],
    desired: Mapping[str, Any],
    containers: Mapping[str, Pairs],
    unchanged: Unchanged,
) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for kind, pairs in containers.items():
        images = [
            {"name": wanted["name"], "image": wanted["image"]}
            for current, wanted in pairs
            if current.get("image") != wanted.get("image")
            and (kind, wanted["name"], "image") not in unchanged
        ]
        if images:
            patch[kind] = images
    deadline = desired.get("activeDeadlineSeconds")
    if deadline is not None and deadline != lower.get("activeDeadlineSeconds"):
        patch["activeDeadlineSeconds"] = deadline
    tolerations, wanted = lower.get("tolerations") or (), desired.get("tolerations") or ()
    if set(map(_text, wanted)) - set(map(_text, tolerations)):
        # A strategic merge patch replaces the whole list, so existing entries must be repeated.
        patch["tolerations"] = _with_tolerations(tolerations, wanted)
    return patch


def _with_tolerations(
    current: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the tolerations of a running pod with the wanted ones.

    API servers accept added tolerations, and other ``tolerationSeconds`` of existing ones. With both an old and a new number of
    seconds, a pod is evicted after the lower number, so the wanted entries replace all current ones that differ only in it.
    """
    groups = _by_text(current, _SECONDS) | _by_text(wanted, _SECONDS)
    return [one for group in groups.values() for one in group]


def _by_text(tolerations: Sequence[Mapping[str, Any]], ignored: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return tolerations by their ``_text``, in the order in which each text occurs first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in tolerations:
        found.setdefault(_text(one, ignored), []).append(one)
    return found


def _text(toleration: Mapping[str, Any], ignored: str = "") -> str:
    """Return a text that is equal for tolerations that are equal in all fields but one, to find one of thousands quickly."""
    return repr(sorted((key, value) for key, value in toleration.items() if key != ignored))


def _resize_patch(
    lower: Mapping[str, Any],
    desired: Mapping[str, Any],
    containers: Mapping[str, Pairs],
    unchanged: Unchanged,
) -> dict[str, Any] | None:
    """Return a patch that resizes cpu and memory of containers (KEP-1287) and pod (KEP-5419); None: no change."""
    patch: dict[str, Any] = {}
    for kind, pairs in containers.items():
        changed = [
            {"name": wanted["name"], "resources": change}
            for current, wanted in pairs
            if (kind, wanted["name"], _RESOURCES) not in unchanged
            and (change := _resource_change(current, wanted))
        ]
        if changed:
            patch[kind] = changed
    if ("", "", _RESOURCES) not in unchanged and (of_pod := _resource_change(lower, desired)):
        patch[_RESOURCES] = of_pod
    return {"spec": patch} if patch else None


def _resource_change(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cpu and memory that differ between the ``resources`` of two containers or two pod specs."""
    before, after = current.get("resources") or {}, wanted.get("resources") or {}
    if before == after:
        return {}
    change: dict[str, Any] = {}
    for field in ("requests", "limits"):
        known = before.get(field) or {}
        differing = {
            name: value
            for name, value in (after.get(field) or {}).items()
            if name in {"cpu", "memory"} and not _is_same(name, known.get(name), value)
        }
        if differing:
            change[field] = differing
    return change


def _is_same(resource: str, current: str | None, wanted: str) -> bool:
    """Report whether two quantities are equal. Overrides may have a text that the API server stores in another form."""
    if current is None or current == wanted:
        return current == wanted
    try:
        return quantity.of(resource, current) == quantity.of(resource, wanted)
    except ValueError:
        return False


def _ephemeral_patch(lower: Mapping[str, Any], wanted: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    existing = {container["name"] for container in lower.get("ephemeralContainers") or ()}
    added = [container for container in wanted if container["name"] not in existing]
    return {"spec": {"ephemeralContainers": added}} if added else None
