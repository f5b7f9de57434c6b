"""A pod's requests are summed as the scheduler sums them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.pod.pod_resources import pod_requests

Spec = dict[str, Any]


def container(**requests: str) -> Spec:
    """Return a container with requests."""
    return {"name": "c", "resources": {"requests": requests}}


def sidecar(**requests: str) -> Spec:
    """Return an init container that keeps running."""
    return container(**requests) | {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": None, "initContainers": None, "overhead": None, "resources": None},
        {"containers": [{"name": "c"}]},
        {"containers": [{"name": "c", "resources": None}]},
        {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}, "requests": None}}]},
    ],
)
def test_absent_and_null_parts_request_nothing(spec: Spec) -> None:
    """Limits are defaulted by the server."""
    assert pod_requests(spec) == {}


def test_containers_are_summed() -> None:
    """Concurrent containers: cpu in thousandths, all else in whole units, each resource separately."""
    spec = {
        "containers": [
            container(cpu="250m", memory="1Mi"),
            container(cpu="1", **{"ephemeral-storage": "1k", "nvidia.com/gpu": "2"}),
        ]
    }
    assert pod_requests(spec) == {
        "cpu": 1250,
        "memory": 2**20,
        "ephemeral-storage": 1000,
        "nvidia.com/gpu": 2,
    }


def test_init_containers_count_by_their_peak() -> None:
    """They run sequentially before the rest: the largest counts if it exceeds the sum."""
    spec = {
        "initContainers": [container(cpu="3", memory="1Ki"), container(cpu="2", **{"example.com/card": "1"})],
        "containers": [container(cpu="1", memory="2Ki"), container(cpu="1")],
    }
    assert pod_requests(spec) == {"cpu": 3000, "memory": 2048, "example.com/card": 1}


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        # The sidecar runs beside the containers.
        ([sidecar(cpu="1")], 2000),
        # It runs beside the init containers after it,
        ([sidecar(cpu="1"), container(cpu="3")], 4000),
        # but not beside those before it.
        ([container(cpu="3"), sidecar(cpu="1")], 3000),
        # Sidecars add up as they start.
        ([sidecar(cpu="1"), container(cpu="2"), sidecar(cpu="1")], 3000),
        ([sidecar(cpu="1"), sidecar(cpu="1"), container(cpu="2")], 4000),
    ],
)
def test_sidecars(init: list[Spec], expected: int) -> None:
    """KEP-753: an init container that keeps running counts with all containers started after it."""
    assert pod_requests({"initContainers": init, "containers": [container(cpu="1")]}) == {"cpu": expected}


def test_other_restart_policies_are_no_sidecars() -> None:
    """Only ``Always`` makes a sidecar."""
    init = container(cpu="1") | {"restartPolicy": "OnFailure"}
    assert pod_requests({"initContainers": [init], "containers": [container(cpu="1")]}) == {"cpu": 1000}


def test_pod_level_requests_replace_the_sum() -> None:
    """KEP-2837: cpu, memory and huge pages of the whole pod count instead of its containers'."""
    spec = {
        "resources": {"requests": {"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/card": "9"}},
        "initContainers": [container(cpu="5")],
        "containers": [container(cpu="2", memory="1Ki", **{"example.com/card": "1"})],
    }
    assert pod_requests(spec) == {
        "cpu": 1000,
        "memory": 1024,
        "hugepages-2Mi": 2**22,
        "example.com/card": 1,
    }


def test_overhead_is_added() -> None:
    """The runtime class' overhead is added to the result, pod-level requests included."""
    overhead = {"cpu": "250m", "memory": "1Ki"}
    spec: Spec = {"overhead": overhead, "containers": [container(cpu="1")]}
    assert pod_requests(spec) == {"cpu": 1250, "memory": 1024}
    spec["resources"] = {"requests": {"cpu": "4"}}
    assert pod_requests(spec) == {"cpu": 4250, "memory": 1024}


def test_the_spec_is_not_modified() -> None:
    spec = {
        "containers": [container(cpu="1")],
        "initContainers": [sidecar(cpu="1")],
        "overhead": {"cpu": "1"},
    }
    before = repr(spec)
    assert pod_requests(spec) == pod_requests(spec) == {"cpu": 3000}
    assert repr(spec) == before


def test_bad_quantity_is_a_value_error() -> None:
    """It does not count as zero."""
    with pytest.raises(ValueError, match="'much' is not a quantity"):
        pod_requests({"containers": [container(cpu="much")]})
