"""The Node object of a virtual node."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from clusterset.model import declared_features, names
from clusterset.model.pod.conditions import is_true
from controller_runtime.apimachinery import quantity, timestamps
from virtual_node.translate.base.fields import cut, is_label_value
from virtual_node.translate.base.metadata import applied, map_patch, recorded_labels

PROVIDER_TAINT = names.TAINT_PROVIDER
_SHARED_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_MESSAGE = 1024
"""Maximum bytes of a condition's message, which may be the lower API server's error."""
_OPTIONAL = (names.ANNOTATION_PROVISION_SECONDS,)
"""Our annotations that are removed if the configuration does not need them."""
_IDENTITIES = uuid.UUID("5f3b1c1e-6f0e-5d0c-9d6a-3c1f4f1c7a52")
"""Namespace of the UUIDs of virtual nodes."""
_INFO = ("architecture", "operatingSystem", "osImage", "kernelVersion", "containerRuntimeVersion")
_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "lower nodes have sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "lower nodes have no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "lower nodes have sufficient PID available"),
    ("NetworkUnavailable", "RouteCreated", "the lower cluster has a network of its own"),
)


TOO_LARGE = "LowerClusterTooLarge"
"""Type of the condition, and reason of Ready and of the event, when the caches of a lower cluster exceed their limit."""


def is_real(node: Mapping[str, Any]) -> bool:
    """Report whether a Node is not virtual, by label ``type``, which tensile-kube's virtual nodes also have."""
    return (node["metadata"].get("labels") or {}).get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL


def node_object(
    *,
    name: str,
    cluster_name: str,
    labels: Mapping[str, str],
    taints: Sequence[Mapping[str, str]],
    addresses: Sequence[Mapping[str, str]],
    kubelet_port: int,
    lower_nodes: Sequence[Mapping[str, Any]],
    kubelet_version: str,
    release: str,
    capacity: Mapping[str, str],
    allocatable: Mapping[str, str],
    conditions: Sequence[Mapping[str, Any]],
    upper_id: str,
    declared: Sequence[str] = (),
    zones: Mapping[str, str] | None = None,
    provider_id: str = "",
    provision_seconds: float | None = None,
) -> dict[str, Any]:
    """Return the desired Node.

    Args:
        name: the virtual node's name.
        cluster_name: the lower cluster's name in the configuration.
        labels: labels from the configuration, which override our own.
        taints: the Node's taints.
        addresses: ``status.addresses``.
        kubelet_port: port of the kubelet API.
        lower_nodes: ``labels``, ``nodeInfo`` and features of the lower nodes, as ``Capacity.nodes`` returns them.
        kubelet_version: the lower cluster's version, such as v1.34.4.
        release: the version of this program; empty: unknown.
        capacity: quantities by resource.
        allocatable: quantities by resource.
        conditions: as ``node_conditions`` returns them.
        upper_id: identity of the upper cluster.
        declared: the features that the Node declares now.
        zones: zone and region that the lower nodes last shared, as ``recorded_zones`` returns them; None: unknown.
        provider_id: ``spec.providerID``; empty: none.
        provision_seconds: seconds for which a pod may wait for a new lower node; None: no nodes are added.
    """
    # Without lower nodes, as before the first list, nothing is known about their zone.
    shared = _shared_labels(lower_nodes) if lower_nodes else dict(zones or {})
    info = {field: _common(lower_nodes, field) for field in _INFO}
    info["operatingSystem"] = info["operatingSystem"] or "linux"
    info["architecture"] = info["architecture"] or "amd64"
    all_labels = {
        names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL,
        "kubernetes.io/role": "agent",
        names.LABEL_HOSTNAME: name,
        "kubernetes.io/os": info["operatingSystem"],
        "kubernetes.io/arch": info["architecture"],
        "beta.kubernetes.io/os": info["operatingSystem"],
        "beta.kubernetes.io/arch": info["architecture"],
        names.LABEL_LOWER_CLUSTER: _label_value(cluster_name),
        **({names.LABEL_VERSION: _label_value(release)} if release else {}),
        **shared,
        **labels,
    }
    features = declared_features.published(
        (node["declaredFeatures"] for node in lower_nodes),
        lower_version=kubelet_version,
        before=frozenset(declared),
    )
    annotations = {names.ANNOTATION_APPLIED: _record({**shared, **labels}, shared, taints)}
    if provision_seconds is not None:
        annotations[names.ANNOTATION_PROVISION_SECONDS] = f"{provision_seconds:g}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": all_labels,
            "annotations": annotations,
        },
        "spec": {
            "taints": [dict(taint) for taint in taints],
            **({"providerID": provider_id} if provider_id else {}),
        },
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(allocatable),
            "conditions": [dict(condition) for condition in conditions],
            "addresses": [dict(address) for address in addresses],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            "nodeInfo": {
                **_identities(upper_id, name),
                "kubeProxyVersion": "",
                "kubeletVersion": kubelet_version,
                **info,
            },
            **({"declaredFeatures": features} if features else {}),
        },
    }


def node_conditions(
    *,
    ready: bool,
    reason: str,
    message: str,
    now: datetime,
    previous: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return Ready and the pressure conditions of a kubelet. A transition time changes only with its status.

    ``TOO_LARGE`` is added if it is the reason, or to end it. Unlike Ready, it stays while the virtual node has stopped.
    """
    moment = timestamps.rfc3339(now)
    before = {condition["type"]: condition for condition in previous}
    wanted = [("Ready", "True" if ready else "False", reason, message)]
    wanted += [(kind, "False", why, text) for kind, why, text in _PRESSURES]
    if reason == TOO_LARGE:
        wanted.append((TOO_LARGE, "True", "CacheLimitExceeded", message))
    elif TOO_LARGE in before:
        wanted.append(
            (TOO_LARGE, "False", "WithinCacheLimit", "the objects of the lower cluster fit into cacheBytes")
        )
    conditions = []
    for kind, status, why, text in wanted:
        old = before.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": why,
                "message": cut(text, _MESSAGE),
                "lastHeartbeatTime": moment,
                "lastTransitionTime": since or moment,
            }
        )
    return conditions


def _record(labels: Mapping[str, str], zones: Mapping[str, str], taints: Sequence[Mapping[str, str]]) -> str:
    """Return the value of the annotation ``applied``, of which ``recorded_labels`` reads the labels."""
    record = {"labels": dict(labels), "taints": [dict(taint) for taint in taints], "zones": dict(zones)}
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


def recorded_zones(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return zone and region that the lower nodes shared when the Node was last written; empty: none, or unknown."""
    zones = applied(metadata).get("zones")
    return {key: str(zones[key]) for key in _SHARED_LABELS if key in zones} if isinstance(zones, dict) else {}


def has_pressure(status: Mapping[str, Any] | None) -> bool:
    """Report whether another program has set one of the conditions that are always False on a virtual node.

    The route controller of a cloud sets NetworkUnavailable on Nodes that are not its machines, and the Node then gets a taint.
    """
    return any(is_true(status, kind) for kind, _, _ in _PRESSURES)


def node_metadata_patch(current: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a strategic merge patch for the Node's labels, our annotations and providerID; None: nothing differs.

    A label that is no longer in the configuration is removed, unless its value was changed on the Node, and so is the zone or
    region that the lower nodes no longer share. The annotation ``applied`` records these labels. A user's value of the label against load
    balancers is kept, because users write ``false`` there. The API server allows to set a providerID, but not to change it.

    Taints belong to users and the control plane (cordon, not-ready, drain). Only those that change in the configuration are
    changed, with the Node's version as a precondition, because a patch replaces the whole list.
    """
    before, wanted = current["metadata"], desired["metadata"]
    labels, ours = before.get("labels") or {}, recorded_labels(before) or {}
    unchanged = [key for key, value in ours.items() if labels.get(key) == value]
    wanted_labels = dict(wanted["labels"])
    excluded = names.LABEL_EXCLUDE_BALANCERS
    if excluded in labels and excluded in wanted_labels and excluded not in unchanged:
        wanted_labels[excluded] = labels[excluded]
    provider_id = desired["spec"].get("providerID")
    changes = {
        "labels": map_patch(labels, wanted_labels, unchanged),
        "annotations": map_patch(before.get("annotations"), wanted["annotations"], _OPTIONAL),
    }
    patch = {field: change for field, change in changes.items() if change}
    made: dict[str, Any] = {"metadata": patch} if patch else {}
    spec: dict[str, Any] = {}
    if provider_id and not (current.get("spec") or {}).get("providerID"):
        spec["providerID"] = provider_id
    if (taints := _changed_taints(current, desired["spec"]["taints"])) is not None:
        spec["taints"] = taints
        made.setdefault("metadata", {})["resourceVersion"] = before.get("resourceVersion")
    return made | ({"spec": spec} if spec else {}) or None


def _changed_taints(
    current: Mapping[str, Any], wanted: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]] | None:
    """Return the Node's taints after a change of the configuration; None: it has not changed, or they are current.

    A taint is identified by key and effect. A user who removed one of ours does not get it back, and one whose value a user
    has changed is not removed.
    """
    recorded = applied(current["metadata"]).get("taints")
    if not isinstance(recorded, list):
        return None  # registered by an earlier release
    before = {_identity(taint): taint for taint in recorded if isinstance(taint, dict)}
    after = {_identity(taint): taint for taint in wanted}
    present = {_identity(taint): taint for taint in (current.get("spec") or {}).get("taints") or ()}
    changed = dict(present)
    for key, taint in before.items():
        if key not in after and key in present and _value(present[key]) == _value(taint):
            del changed[key]
    for key, new in after.items():
        is_new = key not in before or _value(before[key]) != _value(new)
        if is_new and (key not in present or _value(present[key]) != _value(new)):
            changed[key] = dict(new)
    return None if changed == present else list(changed.values())


def _identity(taint: Mapping[str, Any]) -> tuple[str, str]:
    return str(taint.get("key")), str(taint.get("effect"))


def _value(taint: Mapping[str, Any]) -> str:
    return str(taint.get("value") or "")


def node_status_patch(
    current: Mapping[str, Any],
    desired: Mapping[str, Any],
    *,
    heartbeat: bool,
    not_stored: Sequence[str] | None = None,
) -> dict[str, Any] | None:
    """Return a strategic merge patch for ``nodes/status``; None: nothing differs and no heartbeat is due.

    The patch keeps conditions of other writers, because the API server merges that list by type.

    Args:
        current: the Node.
        desired: the result of ``node_object``.
        heartbeat: whether a heartbeat is due.
        not_stored: the declared features that an older API server did not store. They are sent again with heartbeats
            only. None: it stored them.
    """
    status, wanted = current.get("status") or {}, desired["status"]
    change: dict[str, Any] = {}
    for field in ("capacity", "allocatable"):
        before, after = status.get(field) or {}, wanted[field]
        differing: dict[str, Any] = {
            key: value for key, value in after.items() if not _same_quantity(key, before.get(key), value)
        }
        differing |= {key: None for key in before if key not in after}
        if differing:
            change[field] = differing
    if not _same_conditions(status.get("conditions") or (), wanted["conditions"]):
        change["conditions"] = wanted["conditions"]
    if status.get("addresses") != wanted["addresses"]:
        change["addresses"] = [{"$patch": "replace"}, *wanted["addresses"]]
    if status.get("daemonEndpoints") != wanted["daemonEndpoints"]:
        change["daemonEndpoints"] = wanted["daemonEndpoints"]
    info = status.get("nodeInfo") or {}
    if any(info.get(key) != value for key, value in wanted["nodeInfo"].items()):
        change["nodeInfo"] = wanted["nodeInfo"]
    features = wanted.get("declaredFeatures") or []
    if features != (status.get("declaredFeatures") or []) and (heartbeat or features != not_stored):
        change["declaredFeatures"] = features or None
    if not change and not heartbeat:
        return None
    change["conditions"] = wanted["conditions"]
    return {"status": change}


def _same_quantity(resource: str, one: str | None, other: str) -> bool:
    """Report whether two texts are the same quantity. The API server writes 10000 as 10k."""
    return one == other or (one is not None and quantity.of(resource, one) == quantity.of(resource, other))


def _same_conditions(current: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    by_type = {condition["type"]: condition for condition in current}
    return all(
        by_type.get(condition["type"], {}).get(field) == condition[field]
        for condition in wanted
        for field in ("status", "reason", "message")
    )


def _common(lower_nodes: Sequence[Mapping[str, Any]], field: str) -> str:
    """Return the most frequent value of a nodeInfo field; in a tie, the value seen first; empty: there is none."""
    values = Counter(node["nodeInfo"].get(field) or "" for node in lower_nodes)
    values.pop("", None)
    return values.most_common(1)[0][0] if values else ""


def _shared_labels(lower_nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the region and zone labels that all lower nodes have with the same value."""
    shared = {}
    for key in _SHARED_LABELS:
        values = {node["labels"].get(key) for node in lower_nodes}
        if len(values) == 1 and (value := values.pop()) and is_label_value(value):
            shared[key] = value
    return shared


def _identities(upper_id: str, name: str) -> dict[str, str]:
    """Return the three identities of a machine. They stay the same as long as the virtual node has its name.

    Readers distinguish nodes by the systemUUID, and take a change of the bootID for a restart of the machine.
    """
    machine, system, boot = (
        uuid.uuid5(_IDENTITIES, f"{upper_id}/{name}/{kind}") for kind in ("machine", "system", "boot")
    )
    return {"machineID": machine.hex, "systemUUID": str(system), "bootID": str(boot)}


def _label_value(text: str) -> str:
    cleaned = "".join(character if character.isalnum() or character in "-_." else "-" for character in text)
    return cleaned[:63].strip("-_.")
