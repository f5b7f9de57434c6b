"""Translation of an upper pod to the pod to create in the lower cluster.

Fields that refer to the *upper cluster* (node, scheduling, priority, owners, identity) are translated or left
out. Fields that describe the *workload* are copied unchanged, including unknown fields.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from clusterset.admission import Admitted, on_allowed_nodes
from clusterset.model import names, overrides
from clusterset.model.overrides import changed_fields
from clusterset.model.pod.lower_spec import lower_spec, required_node
from clusterset.model.policy.copied_keys import is_upper_only
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from virtual_node.translate.base.metadata import render_record, render_tripped, sent, trip
from virtual_node.translate.base.ownership import made_for, ownership_labels
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import dns, downward_api, pod_certificates, service_account

SPEC_CONTAINERS = ("containers", "initContainers")
"""Fields with the containers of a new pod; debug containers are added later."""
_to_sorted_json = json.JSONEncoder(sort_keys=True).encode
"""``json.dumps`` would make an encoder for every pod."""


def lower_pod(
    upper: Mapping[str, Any],
    options: PodOptions,
    budget: TranslationBudget | None = None,
    *,
    admitted: Admitted | None = None,
) -> dict[str, Any]:
    """Return the lower pod that an upper pod requests, without overrides.

    ``clusterset.model.pod.lower_spec`` documents the scheduling fields. ``overridden`` returns the pod to create.

    Args:
        upper: the upper pod.
        options: translation options.
        budget: of the pod, for all functions that translate it; None: a new one for this function.
        admitted: the pod as ``ClusterRules`` admitted it; None: for an existing lower pod.

    Raises:
        TooLargeError: the translation exceeds the budget.
    """
    budget = budget or TranslationBudget()
    metadata = upper["metadata"]
    stays = stays_above(upper, options)
    tripped = trip(metadata.get("labels"), options.ignore_labels)
    carried: dict[str, dict[str, str]] = {
        field: {key: value for key, value in (metadata.get(field) or {}).items() if not stays(field, key)}
        for field in ("labels", "annotations")
    }
    own_labels = {names.LABEL_VIRTUAL_POD: "true", **ownership_labels(options.owner, metadata["uid"])}
    own = {
        names.ANNOTATION_UPPER_NAMESPACE: metadata["namespace"],
        names.ANNOTATION_MADE_FOR: made_for(options.owner.cluster_id, metadata),
    }
    if tripped:
        own[names.ANNOTATION_TRIPPED_LABELS] = render_tripped(tripped)
    spec = _scheduled(upper, options, budget) if admitted is None else dict(admitted.requested)
    differs = _differs(upper, options, stays)
    _translate(spec, upper, options, differs, budget)
    if spec.get("volumes"):
        spec["volumes"], extra_annotations = downward_api.volumes(spec["volumes"], upper, differs, budget)
        own |= extra_annotations
    if node := required_node(metadata.get("annotations") or {}, options.policy.of(metadata["namespace"])):
        own[names.ANNOTATION_REQUIRED_NODE] = node
    if upper["spec"].get("readinessGates"):
        own[names.ANNOTATION_READINESS_GATES] = "true"
    record = sent(carried, own={"labels": own_labels, "annotations": own})
    own[names.ANNOTATION_APPLIED] = render_record({**record, "spec": _digest(spec)})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": metadata["name"],
            "namespace": options.namespace_map(metadata["namespace"]),
            "labels": {**carried["labels"], **own_labels},
            "annotations": {**carried["annotations"], **own},
        },
        "spec": spec,
    }


def stays_above(upper: Mapping[str, Any], options: PodOptions) -> downward_api.Stays:
    """Return a function that reports for a field and key whether a label or annotation is not sent to the lower cluster."""
    rules = options.policy.of(upper["metadata"]["namespace"]).annotations

    @functools.cache  # a pod can have thousands of variables with the value of one label
    def stays(field: str, key: str) -> bool:
        ignored = options.ignore_labels if field == "labels" else options.ignore_annotations
        return key in ignored or names.is_reserved(key) or is_upper_only(field, key, rules)

    return stays


def _differs(upper: Mapping[str, Any], options: PodOptions, stays: downward_api.Stays) -> downward_api.Stays:
    """Return a function that reports for a field and key whether containers must not read the lower pod's value."""
    labels = upper["metadata"].get("labels") or {}

    def differs(field: str, key: str) -> bool:
        is_below = field == "labels" and downward_api.reads_zone_of_lower_pod(key, labels, options.labels)
        return not is_below and stays(field, key)

    return differs


def created(
    upper: Mapping[str, Any], options: PodOptions, admitted: Admitted, budget: TranslationBudget
) -> dict[str, Any]:
    """Return the lower pod to create for an admitted pod.

    Raises:
        TooLargeError: the translation exceeds the budget.
    """
    body = overridden(lower_pod(upper, options, budget, admitted=admitted), upper, options, budget)
    spec = {**on_allowed_nodes(body["spec"], admitted.rules, options.pool)}
    service_account.with_token_modes(spec, upper, options)
    # After the overrides, so that a DNS policy of the operator counts like one of the pod.
    namespace = upper["metadata"]["namespace"]
    dns.with_upper_names(spec, namespace, servers=options.dns_servers, domain=options.cluster_domain)
    return {**body, "spec": spec}


def overridden(
    requested: Mapping[str, Any],
    upper: Mapping[str, Any],
    options: PodOptions,
    budget: TranslationBudget | None = None,
) -> dict[str, Any]:
    """Return the lower pod to create: the result of ``lower_pod`` with the operator's overrides.

    The digest in annotation ``applied`` stays that of the requested spec. So a changed override alone does not
    change running pods.

    Args:
        requested: the result of ``lower_pod``.
        upper: the upper pod.
        options: translation options.
        budget: as in ``lower_pod``.

    Raises:
        TooLargeError: the translation exceeds the budget.
    """
    budget = budget or TranslationBudget()
    found = options.overrides.of(upper)
    if not found:
        return dict(requested)
    pod: Mapping[str, Any] = requested
    changes: dict[str, list[str]] = {}
    for one in found:
        before, pod = pod, overrides.applied(pod, [one], budget)
        changes[one.name] = changed_fields(before, pod)
    metadata = pod["metadata"]
    note = json.loads(requested["metadata"]["annotations"][names.ANNOTATION_APPLIED])
    for field in ("labels", "annotations"):
        keys = {*note[field], *(key for one in found for key in one.metadata.get(field) or ())}
        own = metadata[field].keys() - keys
        note[field] = sent(metadata, own={field: own})[field]
    ours = {
        names.ANNOTATION_APPLIED: render_record(note),
        names.ANNOTATION_OVERRIDES: json.dumps(changes, separators=(",", ":")),
    }
    return {**pod, "metadata": {**metadata, "annotations": {**metadata["annotations"], **ours}}}


def ephemeral_containers(
    upper: Mapping[str, Any], options: PodOptions, budget: TranslationBudget | None = None
) -> list[Mapping[str, Any]]:
    """Return an upper pod's ephemeral containers, translated for the lower pod.

    Raises:
        TooLargeError: the translation exceeds the budget; None: a new one.
    """
    budget = budget or TranslationBudget()
    above = upper["spec"]
    if not above.get("ephemeralContainers"):
        return []
    differs = _differs(upper, options, stays_above(upper, options))
    spec = {
        "volumes": above.get("volumes") or [],
        "ephemeralContainers": [
            _literal_fields(container, upper, differs, budget) for container in above["ephemeralContainers"]
        ],
    }
    if options.service_accounts:
        service_account.with_upper_root_ca(spec, cluster_id=options.owner.cluster_id)
    else:
        service_account.with_lower_identity(spec)
    images = overrides.for_images(options.overrides.of(upper))
    return list(overrides.applied({"spec": spec}, images, budget)["spec"]["ephemeralContainers"])


def _digest(spec: Mapping[str, Any]) -> str:
    """Return a hash of the requested spec fields that can change on a running pod."""
    asked = [
        [(one["name"], one.get("image"), one.get("resources")) for one in spec.get(kind) or ()]
        for kind in SPEC_CONTAINERS
    ]
    wanted = [asked, spec.get("activeDeadlineSeconds"), spec.get("tolerations")]
    if of_pod := spec.get("resources"):
        wanted.append(of_pod)
    return hashlib.sha256(_to_sorted_json(wanted).encode()).hexdigest()[:16]


def _scheduled(upper: Mapping[str, Any], options: PodOptions, budget: TranslationBudget) -> dict[str, Any]:
    return lower_spec(
        upper,
        options.policy.of(upper["metadata"]["namespace"]),
        node_name=options.owner.node_name,
        node_labels=options.labels,
        reach=options.reach,
        budget=budget,
    )


def _translate(
    spec: dict[str, Any],
    upper: Mapping[str, Any],
    options: PodOptions,
    differs: downward_api.Stays,
    budget: TranslationBudget,
) -> None:
    """Replace references to the upper pod, its claims and its identity in a spec, in place."""
    for kind in SPEC_CONTAINERS:
        if kind in spec:
            spec[kind] = [_literal_fields(container, upper, differs, budget) for container in spec[kind]]
    _with_claims(spec, upper)
    if options.service_accounts:
        service_account.with_upper_identity(spec, upper, options)
    else:
        service_account.with_lower_identity(spec)
    pod_certificates.with_upper_certificates(spec, upper, options)


def _literal_fields(
    container: Mapping[str, Any],
    upper: Mapping[str, Any],
    differs: downward_api.Stays,
    budget: TranslationBudget,
) -> Mapping[str, Any]:
    """Replace environment references by the upper value where the lower pod's value would differ."""
    env = container.get("env")
    if not env or not any("valueFrom" in variable for variable in env):
        return container
    return {**container, "env": [downward_api.literal(variable, upper, differs, budget) for variable in env]}


def _with_claims(spec: dict[str, Any], pod: Mapping[str, Any]) -> None:
    """Rewrite generic ephemeral volumes of a lower pod spec, in place, to claims that the upper cluster created.

    The upper pod owns such a claim. If the volume were not rewritten, the lower cluster would create another
    claim.
    """
    volumes = spec.get("volumes")
    if not volumes or not any("ephemeral" in volume for volume in volumes):
        return
    spec["volumes"] = [
        {
            "name": volume["name"],
            "persistentVolumeClaim": {"claimName": f"{pod['metadata']['name']}-{volume['name']}"},
        }
        if "ephemeral" in volume
        else volume
        for volume in volumes
    ]
