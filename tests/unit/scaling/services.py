"""Services with their EndpointSlices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller_runtime.apimachinery.translation_budget import TranslationBudget
from tests.unit.scaling.measure import Kind, Stage
from tests.unit.virtual_node.translate.copying import lower_copy, patch, view_of
from virtual_node.translate.base.view import LowerPod

_DIMENSIONS = {
    "ports": 100,
    "endpoints": 100,
    "addresses": 100,
    "slices": 20,
    "slice_ports": 100,
    "labels": 50,
    "annotations": 100,
    "annotation_bytes": 8000,
    "pod_name_bytes": 60,
}
_POD = LowerPod("shop", "web-1", "l-1", "node-1")


def _make(size: Mapping[str, int]) -> dict[str, Any]:
    metadata = {
        "name": "web",
        "namespace": "shop",
        "uid": "s-1",
        "labels": {f"label{number}": "x" for number in range(size["labels"])},
        "annotations": {f"a{number}": "x" for number in range(size["annotations"])}
        | {"large": "x" * size["annotation_bytes"]},
    }
    ports = [{"name": f"p{number}", "port": number, "targetPort": number} for number in range(size["ports"])]
    target = {"kind": "Pod", "namespace": "shop", "name": "w" * size["pod_name_bytes"]}

    def piece(number: int) -> dict[str, Any]:
        many = number == 0
        return {
            "metadata": {**metadata, "name": f"web-{number}", "uid": f"e-{number}"}
            if many
            else {"name": f"web-{number}", "namespace": "shop", "uid": f"e-{number}"},
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [
                        f"10.0.0.{address}"
                        for address in range(size["addresses"] if many and not endpoint else 1)
                    ],
                    "targetRef": target if not endpoint else {**target, "name": "w"},
                }
                for endpoint in range(size["endpoints"] if many else 1)
            ],
            "ports": [
                {"name": f"p{port}", "port": port} for port in range(size["slice_ports"] if many else 1)
            ],
        }

    return {
        "service": {"metadata": metadata, "spec": {"clusterIP": "10.0.0.1", "ports": ports}},
        "slices": list(map(piece, range(size["slices"]))),
    }


def _stages(source: Mapping[str, Any]) -> Iterable[Stage]:
    def service(_budget: TranslationBudget) -> Any:
        body = lower_copy("Service", source["service"])
        older = {**body, "metadata": {**body["metadata"], "labels": {}}, "spec": {"ports": []}}
        return body, patch("Service", older, body)

    def slices(_budget: TranslationBudget) -> Any:
        view = view_of(find_pod=lambda *_: _POD)
        made = [lower_copy("EndpointSlice", piece, view) for piece in source["slices"]]
        changes = [
            patch("EndpointSlice", {**one, "endpoints": one["endpoints"][:1]}, one, upper)
            for one, upper in zip(made, source["slices"], strict=True)
        ]
        return made, changes

    return service, slices


SERVICES = Kind("Service", _DIMENSIONS, _make, _stages)
