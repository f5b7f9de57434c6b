"""ClusterProfiles with the providers that an administrator configured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterset.config import ClusterProfiles
from clusterset.profiles import ExecConfig, Provider, select
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from controller_runtime.objects import from_dict
from tests.unit.scaling.measure import Kind, Stage

_DIMENSIONS = {
    "profiles": 20,
    "bad_profiles": 30,
    "offers": 60,
    "configured": 30,
    "name_bytes": 300,
    "ca_bytes": 1200,
    "extensions": 60,
    "extension_bytes": 600,
    "server_bytes": 600,
    "label_bytes": 600,
}


def _make(size: Mapping[str, int]) -> dict[str, Any]:
    extensions = [{"name": f"e{number}", "extension": {}} for number in range(size["extensions"])]
    known = {"name": "client.authentication.k8s.io/exec", "extension": {"x": "x" * size["extension_bytes"]}}
    cluster = {
        "server": "https://" + "a" * size["server_bytes"],
        "certificate-authority-data": "YWFh" * (size["ca_bytes"] // 4),
        "extensions": [*extensions, known],
    }
    offers = [
        {"name": f"{'o' * (size['name_bytes'] if not number else 1)}{number}"}
        for number in range(size["offers"])
    ]

    def profile(number: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
        metadata = {
            "name": f"p{number}",
            "namespace": "fleet",
            "uid": f"{number}",
            "labels": {"x": "x" * size["label_bytes"]},
        }
        return {"metadata": metadata, "status": {"accessProviders": entries}}

    profiles = [profile(0, [*offers, {"name": "ours", "cluster": cluster}])]
    small = {"server": "https://a"}
    profiles += [
        profile(number, [{"name": "ours", "cluster": small}]) for number in range(1, size["profiles"])
    ]
    profiles += [profile(1000 + number, []) for number in range(size["bad_profiles"])]
    return {"profiles": profiles, "configured": [f"k{number}" for number in range(size["configured"])]}


def _stages(source: Mapping[str, Any]) -> Iterable[Stage]:
    settings = ClusterProfiles(namespace="fleet", providers_file="providers.yaml")
    providers = [
        Provider(name=name, exec_config=ExecConfig(command="c")) for name in ("ours", *source["configured"])
    ]

    def selected(_budget: TranslationBudget) -> Any:
        found = select(map(from_dict, source["profiles"]), providers, settings)
        return [text.decode() for text in found.kubeconfigs.values()], found.refused

    return (selected,)


PROFILES = Kind("ClusterProfile", _DIMENSIONS, _make, _stages)
