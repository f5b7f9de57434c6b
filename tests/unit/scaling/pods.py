"""Pods with the Services, ConfigMaps and overrides that they are translated with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from clusterset.admission import ClusterRules, on_allowed_nodes
from clusterset.config import KNOWN_CONTROLLERS, Cluster
from clusterset.model import names
from clusterset.model.overrides import Override, OverrideSet
from clusterset.model.pod.resource_claims import ResourceClaimsConfig
from clusterset.model.policy.copied_keys import KeyPatterns
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from tests.unit.scaling.measure import Kind, Stage
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import (
    dependencies,
    lower_pod,
    service_environment,
    synthetic_status,
    update,
)
from virtual_node.translate.pods.update import ChangePolicy

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_RULES = ClusterRules(
    Cluster(name="lower1", kubeconfig="", resource_claims=ResourceClaimsConfig(enabled=True)),
    controllers=KNOWN_CONTROLLERS,
)
_DIMENSIONS = {
    "containers": 15,
    "init_containers": 15,
    "debug_containers": 15,
    "variables": 60,
    "value_bytes": 1200,
    "name_bytes": 36,
    "reserved_references": 60,
    "label_references": 60,
    "config_map_sources": 30,
    "config_map_keys": 60,
    "prefix_bytes": 60,
    "container_ports": 30,
    "volume_mounts": 30,
    "volumes": 30,
    "ephemeral_volumes": 30,
    "projected_sources": 30,
    "token_sources": 30,
    "downward_items": 60,
    "labels": 30,
    "annotation_bytes": 1200,
    "annotations": 30,
    "tolerations": 60,
    "older_tolerations": 60,
    "spread_constraints": 30,
    "affinity_terms": 30,
    "selector_terms": 60,
    "node_name_bytes": 60,
    "resource_claims": 30,
    "pull_secrets": 30,
    "host_aliases": 30,
    "service_ports": 30,
    "services": 15,
    "override_variables": 30,
    "override_bytes": 600,
    "image_bytes": 300,
}


def _make(size: Mapping[str, int]) -> dict[str, Any]:
    value = "v" * size["value_bytes"]
    reference = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.DOMAIN}/mine']"}}
    labelled = {"fieldRef": {"fieldPath": "metadata.labels['ignored']"}}
    first: dict[str, Any] = {
        "env": [
            {"name": f"{'V' * size['name_bytes']}{number}", "value": value if number == 0 else "v"}
            for number in range(size["variables"])
        ]
        + [{"name": f"A{number}", "valueFrom": reference} for number in range(size["reserved_references"])]
        + [{"name": f"L{number}", "valueFrom": labelled} for number in range(size["label_references"])],
        "envFrom": [
            {
                "prefix": f"{'S' * (size['prefix_bytes'] if not number else 1)}{number}",
                "configMapRef": {"name": "c"},
            }
            for number in range(size["config_map_sources"])
        ],
        "ports": [{"containerPort": number} for number in range(size["container_ports"])],
        "volumeMounts": [
            {"name": f"v{number}", "mountPath": f"/{number}"} for number in range(size["volume_mounts"])
        ],
    }
    # Every container has a source of its own, because its keys must not be read again for each container.
    plain = {"image": "i" * 5, "envFrom": [{"configMapRef": {"name": "c"}}]}
    annotations = {f"a{number}": "x" for number in range(size["annotations"])}
    annotations["large"] = '"' * size["annotation_bytes"]
    annotations[f"{names.DOMAIN}/mine"] = "y" * size["annotation_bytes"]
    annotations[names.ANNOTATION_REQUIRED_NODE] = "n" * size["node_name_bytes"]
    terms: dict[str, Any] = {"nodeSelectorTerms": [{} for _ in range(size["selector_terms"])]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    annotations[names.ANNOTATION_CLUSTER_SELECTOR] = json.dumps(
        {
            "affinity": {"nodeAffinity": affinity},
            "tolerations": [{"key": f"t{number}"} for number in range(size["tolerations"])],
        }
    )
    selector = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": names.LABEL_HOSTNAME}
    sources: list[dict[str, Any]] = [
        {"secret": {"name": f"s{number}"}} for number in range(size["projected_sources"])
    ]
    sources += [{"serviceAccountToken": {"path": f"t{number}"}} for number in range(size["token_sources"])]
    sources.append(
        {
            "downwardAPI": {
                "items": [
                    {"path": f"{number}", "fieldRef": {"fieldPath": f"metadata.{what}"}}
                    for number in range(size["downward_items"])
                    for what in ("annotations", "labels")
                ]
            }
        }
    )
    volumes = [{"name": f"v{number}", "emptyDir": {}} for number in range(size["volumes"])]
    volumes += [{"name": f"e{number}", "ephemeral": {}} for number in range(size["ephemeral_volumes"])]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u-1", "annotations": annotations,
            "labels": {"ignored": "x" * 60, **{f"label{number}": "x" for number in range(size["labels"])}},
        },
        "spec": {
            "nodeName": "vn",
            "containers": [
                {"name": f"c{number}", **(first | {"image": "i" * size["image_bytes"]} if not number else plain)}
                for number in range(size["containers"])
            ],
            "initContainers": [{"name": f"i{number}", **plain} for number in range(size["init_containers"])],
            "ephemeralContainers": [{"name": f"d{number}", **plain} for number in range(size["debug_containers"])],
            "volumes": [*volumes, {"name": "projected", "projected": {"sources": sources}}],
            "topologySpreadConstraints": [selector] * size["spread_constraints"],
            "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector] * size["affinity_terms"]}
            },
            "resourceClaims": [
                {"name": f"r{number}", "resourceClaimName": f"r{number}"} for number in range(size["resource_claims"])
            ],
            "imagePullSecrets": [{"name": f"p{number}"} for number in range(size["pull_secrets"])],
            "hostAliases": [{"ip": f"{number}", "hostnames": ["a"]} for number in range(size["host_aliases"])],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip
    services = [
        {
            "metadata": {"name": f"s{number}", "namespace": "shop"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [
                {"name": f"p{port}", "port": port} for port in range(size["service_ports"] if not number else 1)
            ]},
        }
        for number in range(size["services"])
    ]  # fmt: skip
    variables = [{"name": f"O{number}", "value": "o"} for number in range(size["override_variables"])]
    variables.append({"name": "LONG", "value": "o" * size["override_bytes"]})
    override = {
        "name": "all",
        "images": [{"from": "docker.io/", "to": "mirror.example.com/"}],
        "patch": {"spec": {"containers": [{"name": "*", "env": variables}]}},
    }
    # Many of them are names of service variables, but not the only key of a small ConfigMap.
    keys = [f"S0_PORT_{number}_TCP" for number in range(1, size["config_map_keys"] + 1)]
    return {
        "pod": pod,
        "services": services,
        "override": override,
        "keys": keys,
        "older": [{"key": f"o{number}"} for number in range(size["older_tolerations"])],
    }


def _stages(source: Mapping[str, Any]) -> Iterable[Stage]:
    pod = source["pod"]
    changed = {
        **pod,
        "metadata": {**pod["metadata"], "labels": {**pod["metadata"]["labels"], "new": "x"}},
        "spec": {**pod["spec"], "containers": [{**one, "image": "j"} for one in pod["spec"]["containers"]]},
    }
    options = PodOptions(
        owner=Owner("upper-1", "vn"),
        ignore_labels=KeyPatterns(("ignored",)),
        policy=_RULES.policy,
    )
    overriding = PodOptions(
        owner=options.owner,
        ignore_labels=options.ignore_labels,
        policy=options.policy,
        overrides=OverrideSet([msgspec.convert(source["override"], Override)]),
    )
    rules = options.policy.of("shop")

    def with_services(spec: dict[str, Any], budget: TranslationBudget) -> None:
        variables = service_environment.service_variables(
            source["services"], namespace="shop", links=True, budget=budget,
            address=lambda service: service["spec"]["clusterIP"],
        )  # fmt: skip
        service_environment.add_variables(
            spec, variables, lambda _kind, _name: frozenset(source["keys"]), budget
        )

    def created(budget: TranslationBudget) -> Any:
        _RULES.admit(pod, options, budget.copy())
        body = lower_pod.lower_pod(pod, options, budget)
        body["spec"] = on_allowed_nodes(body["spec"], rules, options.pool)
        return body, [[need.kind, need.name] for need in dependencies.dependencies(pod)]

    def with_variables(budget: TranslationBudget) -> Any:
        spec = dict(pod["spec"])
        with_services(spec, budget)
        return spec

    def overridden(budget: TranslationBudget) -> Any:
        plain = {
            "metadata": {
                "annotations": {names.ANNOTATION_APPLIED: '{"labels":[],"annotations":[]}'},
                "labels": {},
            }
        }
        return lower_pod.overridden({**pod, **plain}, pod, overriding, budget)

    def updated(budget: TranslationBudget) -> Any:
        older = source["older"]
        base = {
            "metadata": pod["metadata"],
            "spec": {**pod["spec"], "ephemeralContainers": [], "tolerations": older},
        }
        changes = update.pod_patch(base, changed, changed, options, budget)
        allowed = ChangePolicy(base, rules)
        main: Mapping[str, Any] = changes.metadata_and_spec or {}
        main, _ = allowed.metadata(main, main)
        main, _ = allowed.spec(main, main)
        return [main, changes.resize, allowed.debug_containers(changes.debug_containers, [])]

    def status(_budget: TranslationBudget) -> Any:
        return synthetic_status.refused(pod, reason="TooLarge", message="m" * 300, now=_NOW)

    return created, with_variables, overridden, updated, status


PODS = Kind("Pod", _DIMENSIONS, _make, _stages)
