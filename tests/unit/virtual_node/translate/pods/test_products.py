"""One pod that multiplies two of its fields is refused, or translated with little memory and time."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from clusterset.model import names
from clusterset.model.overrides import Override, OverrideSet
from controller_runtime.apimachinery.translation_budget import LARGEST_BODY, TooLargeError, json_size
from controller_runtime.objects import from_dict
from tests import objects
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import downward_api, lower_pod
from virtual_node.translate.pods.service_environment import add_variables, service_variables

OPTIONS = PodOptions(owner=Owner("upper-1", "vn"))
MB = 1024 * 1024


@contextmanager
def cheap(*, memory: int, seconds: float = 2.0) -> Iterator[None]:
    """Fail if the block takes more memory (bytes) or CPU time, which tracing makes several times longer."""
    tracemalloc.start()
    started = time.thread_time()
    try:
        yield
        assert time.thread_time() - started < seconds
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()


def pod(*, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return an upper pod."""
    return objects.pod(node="vn", annotations=annotations, **spec)


def service(ports: int) -> dict[str, Any]:
    """Return a Service with so many named ports."""
    return objects.service(ports=[{"name": f"p{number}", "port": number} for number in range(1, ports + 1)])


def variables(services: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the service variables of a pod."""
    return service_variables(
        services, namespace="shop", links=True, address=lambda one: str(one["spec"]["clusterIP"])
    )


def test_service_variables_of_many_ports_in_many_containers_are_refused():
    spec = {"containers": [{"name": f"c{number}"} for number in range(200)]}
    with (
        cheap(memory=30 * MB),
        pytest.raises(
            TooLargeError, match=r"^Service variables of all ports .* set enableServiceLinks: false"
        ),
    ):
        add_variables(spec, variables([service(4000)]), lambda _kind, _name: ())
    assert spec["containers"][0] == {"name": "c0"}


def test_variables_of_many_services_are_refused_before_they_are_built():
    """Also in a pod with one container."""
    with cheap(memory=30 * MB, seconds=5), pytest.raises(TooLargeError):
        variables({**service(4000), "metadata": {"name": f"s{n}", "namespace": "shop"}} for n in range(100))


def test_service_variables_that_all_containers_override_are_refused():
    """They add no bytes, so the comparisons are counted."""
    found = variables([service(4000)])
    source = {"envFrom": [{"configMapRef": {"name": "all"}}]}
    spec = {"containers": [{"name": f"c{number}", **source} for number in range(400)]}
    with cheap(memory=30 * MB), pytest.raises(TooLargeError, match="steps"):
        add_variables(spec, found, lambda _kind, _name: found.keys())


def test_many_prefixes_are_refused():
    sources = [{"prefix": f"P{number}", "configMapRef": {"name": "c"}} for number in range(10_000)]
    spec = {"containers": [{"name": "c", "envFrom": sources}]}
    with cheap(memory=30 * MB), pytest.raises(TooLargeError, match="envFrom"):
        add_variables(spec, variables([service(4000)]), lambda _kind, _name: ())


def test_many_files_with_large_annotations_are_formatted_once():
    items = [
        {"path": f"{number}-{what}", "fieldRef": {"fieldPath": f"metadata.{what}"}}
        for number in range(6000)
        for what in ("annotations", "labels")
    ]
    upper = pod(
        annotations={"large": '"' * 250_000}, volumes=[{"name": "v", "downwardAPI": {"items": items}}]
    )
    with cheap(memory=20 * MB):
        lower = lower_pod.lower_pod(upper, OPTIONS)
    assert downward_api.ANNOTATION_ANNOTATIONS not in lower["metadata"]["annotations"]
    assert downward_api.ANNOTATION_LABELS in lower["metadata"]["annotations"]


def test_the_keys_of_an_object_are_read_once_for_all_containers():
    data = {f"K{number}": "v" * 8 for number in range(42_000)}
    config_map = from_dict({"metadata": {"name": "c", "namespace": "shop"}, "data": data})
    assert config_map.size > 800_000
    reads: list[str] = []

    def keys_of(_kind: str, name: str) -> frozenset[str]:
        reads.append(name)
        return config_map.field_keys("data")

    source = {"envFrom": [{"configMapRef": {"name": "c"}}]}
    spec = {"containers": [{"name": f"c{number}", **source} for number in range(400)]}
    with cheap(memory=40 * MB):
        add_variables(spec, variables([service(1)]), keys_of)
    assert reads == ["c"]
    assert len(spec["containers"][399]["env"]) == 8


def test_a_large_annotation_in_many_variables_is_refused():
    reference = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.DOMAIN}/anything']"}}
    env = [{"name": f"V{number}", "valueFrom": reference} for number in range(4000)]
    upper = pod(
        annotations={f"{names.DOMAIN}/anything": "x" * 250_000},
        containers=[{"name": "c", "image": "i", "env": env}],
    )
    with (
        cheap(memory=10 * MB),
        pytest.raises(
            TooLargeError, match=r"^Variables with fieldPath metadata\.annotations\['.*; shorten the value"
        ),
    ):
        lower_pod.lower_pod(upper, OPTIONS)
    upper["spec"]["ephemeralContainers"] = upper["spec"].pop("containers")
    with cheap(memory=10 * MB), pytest.raises(TooLargeError):
        lower_pod.ephemeral_containers(upper, OPTIONS)


def test_a_required_node_in_many_terms_is_refused():
    terms: dict[str, Any] = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}] * 60_000}
    }
    upper = pod(
        annotations={
            names.ANNOTATION_CLUSTER_SELECTOR: json.dumps({"affinity": {"nodeAffinity": terms}}),
            names.ANNOTATION_REQUIRED_NODE: "n" * 253,
        }
    )
    with cheap(memory=40 * MB), pytest.raises(TooLargeError, match="nodeSelectorTerm"):
        lower_pod.lower_pod(upper, OPTIONS)


@pytest.mark.parametrize(
    "change",
    [
        {"images": [{"from": "docker.io/", "to": f"mirror.example.com/{'x' * 1000}/"}]},
        {"patch": {"spec": {"containers": [{"name": "*", "env": [{"name": "A", "value": "x" * 1000}]}]}}},
    ],
    ids=["image", "variable"],
)
def test_an_override_of_many_containers_is_refused(change):
    override = msgspec.convert({"name": "all", **change}, Override)
    options = PodOptions(owner=OPTIONS.owner, overrides=OverrideSet([override]))
    upper = pod(containers=[{"name": f"c{number}", "image": "i"} for number in range(6000)])
    requested = lower_pod.lower_pod(upper, options)
    with cheap(memory=20 * MB), pytest.raises(TooLargeError, match=r"^Override all in each container"):
        lower_pod.overridden(requested, upper, options)


def test_a_usual_pod_in_a_namespace_with_many_services_fits():
    services = (
        {**service(2), "metadata": {"name": f"service-{number}", "namespace": "shop"}}
        for number in range(500)
    )
    spec = {"containers": [{"name": f"c{number}"} for number in range(5)]}
    add_variables(spec, variables(services), lambda _kind, _name: ())
    assert json_size(spec) < LARGEST_BODY
    assert len(spec["containers"][4]["env"]) == 500 * 13


def test_long_texts_are_quoted_quickly():
    with cheap(memory=20 * MB):
        assert downward_api.quote("a" * 1_000_000) == f'"{"a" * 1_000_000}"'
        assert len(downward_api.quote('"' * 100_000)) == 200_002
