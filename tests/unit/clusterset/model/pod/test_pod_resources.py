"""A pod's requests are summed as the scheduler sums them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.pod.pod_resources import placed_requests, pod_requests

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


def reported(name: str, allocated: dict[str, str] | None, actual: dict[str, str] | None) -> Spec:
    """Return a container's status, without what is None."""
    status: Spec = {"name": name}
    if allocated is not None:
        status["allocatedResources"] = allocated
    if actual is not None:
        status["resources"] = {"requests": actual}
    return status


def pending(reason: str) -> Spec:
    """Return a status of a pod with a resize that is not applied yet."""
    return {"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}


@pytest.mark.parametrize(
    ("wanted", "status", "expected"),
    [
        (["1", "1"], [("1", "1"), ("1", "1")], 2000),
        (["3", "1"], [("3", "3"), ("1", "1")], 4000),
        (["1", "3"], [("3", "3"), ("1", "1")], 4000),
        (["1", "1"], [("1", "3"), ("1", "1")], 4000),
        (["5", "5"], [("1", "1"), ("1", "1")], 10000),
        (["2", "2"], [], 4000),
        (["2", "2"], [("1", None)], 4000),
    ],
    ids=[
        "settled",
        "grown",
        "moved between containers",
        "not yet shrunk",
        "deferred",
        "new",
        "no actual resources",
    ],
)
def test_a_resizing_pod_counts_with_the_largest_sum_of_its_containers(wanted, status, expected) -> None:
    """A resize from one container to another takes no more room, although each of them has its maximum at another time."""
    spec = {"containers": [{**container(cpu=cpu), "name": str(number)} for number, cpu in enumerate(wanted)]}
    statuses = [
        reported(str(number), {"cpu": allocated}, None if actual is None else {"cpu": actual})
        for number, (allocated, actual) in enumerate(status)
    ]
    assert placed_requests(spec, {"containerStatuses": statuses}) == {"cpu": expected}


@pytest.mark.parametrize(("reason", "expected"), [("Deferred", 9000), ("Infeasible", 2000)])
def test_an_infeasible_resize_takes_no_room(reason: str, expected: int) -> None:
    """The kubelet never applies it."""
    status = {**pending(reason), "containerStatuses": [reported("c", {"cpu": "2"}, {"cpu": "1"})]}
    assert placed_requests({"containers": [container(cpu="9")]}, status) == {"cpu": expected}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, 4000),
        ({"allocatedResources": {"cpu": "6"}, "resources": {"requests": {"cpu": "5"}}}, 6000),
        ({"allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "5"}}}, 5000),
        (
            {
                "allocatedResources": {"cpu": "3"},
                "resources": {"requests": {"cpu": "2"}},
                **pending("Infeasible"),
            },
            3000,
        ),
    ],
    ids=["new", "shrinking", "not yet shrunk", "infeasible"],
)
def test_pod_level_resources_count_with_their_own_status(status: Spec, expected: int) -> None:
    """Those of the containers are part of them; what a pod cannot request for all its containers is summed."""
    spec = {
        "resources": {"requests": {"cpu": "4"}},
        "containers": [container(cpu="1", **{"example.com/card": "1"})],
        "overhead": {"cpu": "100m"},
    }
    total = placed_requests(spec, status)
    assert total["cpu"] == expected + 100
    assert total.get("example.com/card", 0) == (0 if "conditions" in status else 1)


def test_init_containers_count_with_their_status_by_their_peak() -> None:
    """Sidecars run beside the containers; others can be resized, too, while they run."""
    spec = {
        "initContainers": [{**sidecar(cpu="1"), "name": "s"}, {**container(cpu="1"), "name": "i"}],
        "containers": [container(cpu="1")],
    }
    status = {"initContainerStatuses": [reported("s", {"cpu": "2"}, None), reported("i", {"cpu": "4"}, None)]}
    assert placed_requests(spec, status) == {"cpu": 6000}
