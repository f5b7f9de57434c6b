"""LimitRanges of lower namespaces, compared with the apiserver's admission (LimitRanger)."""

from __future__ import annotations

from typing import Any

import pytest

from multi_scheduler.state import quotas
from multi_scheduler.state.quotas import LimitRange


def _range(*items: dict[str, Any], name: str = "r") -> LimitRange:
    found = quotas.read_limit_range(
        {"metadata": {"name": name, "namespace": "shop"}, "spec": {"limits": [*items]}}
    )
    assert found is not None
    return found


def _of_containers(**item: Any) -> LimitRange:
    return _range({"type": "Container", **item})


def _spec(requests: Any = None, limits: Any = None, **more: Any) -> dict[str, Any]:
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    return {"containers": [{"name": "c", "resources": resources}], **more}


def test_adds_defaults_to_containers():
    """Requests and limits by resource; own values stay."""
    ranges = [_of_containers(defaultRequest={"cpu": "1", "memory": "1Gi"}, default={"cpu": "2"})]
    made = quotas.with_defaults(_spec({"cpu": "100m"}), ranges)
    (container,) = made["containers"]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "2"}}


def test_adds_defaults_to_init_containers():
    """Including sidecars."""
    spec = _spec(initContainers=[{"name": "i"}, {"name": "s", "restartPolicy": "Always"}])
    made = quotas.with_defaults(spec, [_of_containers(defaultRequest={"cpu": "1"})])
    assert [one["resources"]["requests"] for one in made["initContainers"]] == [{"cpu": "1"}, {"cpu": "1"}]
    assert "resources" not in spec["initContainers"][0]


def test_first_of_several_ranges_wins():
    """Further ranges fill in what it leaves open."""
    ranges = [
        _range({"type": "Container", "defaultRequest": {"cpu": "1"}}, name="a"),
        _range({"type": "Container", "defaultRequest": {"cpu": "2", "memory": "1Gi"}}, name="b"),
    ]
    (container,) = quotas.with_defaults(_spec(), ranges)["containers"]
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


def test_spec_without_defaults_is_not_copied():
    """Ranges with only bounds cost nothing."""
    spec = _spec()
    assert quotas.with_defaults(spec, [_of_containers(max={"cpu": "1"})]) is spec


@pytest.mark.parametrize(
    ("item", "requests", "limits", "expected"),
    [
        ({"min": {"cpu": "100m"}}, {"cpu": "100m"}, {}, ""),
        ({"min": {"cpu": "100m"}}, {}, {}, "minimum cpu usage per Container is 100m, but no request is specified"),
        ({"min": {"cpu": "100m"}}, {"cpu": "50m"}, {}, "minimum cpu usage per Container is 100m, but request is 50m"),
        ({"min": {"cpu": "2"}}, {"cpu": "2"}, {"cpu": "1"}, "contradicts the pod"),
        ({"max": {"cpu": "1"}}, {"cpu": "1"}, {"cpu": "1"}, ""),
        ({"max": {"cpu": "1"}}, {"cpu": "1"}, {}, "maximum cpu usage per Container is 1, but no limit is specified"),
        ({"max": {"memory": "1Gi"}}, {}, {"memory": "2Gi"}, "maximum memory usage per Container is 1Gi, but limit is 2Gi"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {"cpu": "1"}, {"cpu": "2"}, ""),
        ({"maxLimitRequestRatio": {"cpu": "1500m"}}, {"cpu": "1"}, {"cpu": "2"}, "ratio per Container is 1500m, but provided ratio is 2.0"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {}, {"cpu": "2"}, "no request is specified or request is 0"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {"cpu": "1"}, {}, "no limit is specified or limit is 0"),
    ],
)  # fmt: skip
def test_enforces_bounds_of_containers(item, requests, limits, expected):
    """In the apiserver's words, with the range's name."""
    found = quotas.objection(_spec(requests, limits), [_of_containers(**item)])
    assert expected in found if expected else found == ""


def test_default_limit_below_a_request_is_refused():
    """Defaults are filled in by field; after that a request must not exceed its limit."""
    ranges = [_of_containers(default={"cpu": "1"}, defaultRequest={"cpu": "500m"})]
    spec = quotas.with_defaults(_spec({"cpu": "2"}), ranges)
    found = quotas.objection(spec, ranges)
    assert found == "a default of LimitRange r contradicts the pod: container c requests 2 cpu and may have 1"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"max": {"cpu": "4"}}, "maximum cpu usage per Pod is 4, but limit is 5"),
        ({"max": {"cpu": "5"}}, ""),
        ({"min": {"cpu": "3"}}, ""),
        ({"min": {"cpu": "4"}}, "minimum cpu usage per Pod is 4, but request is 3"),
        ({"min": {"memory": "1"}}, "minimum memory usage per Pod is 1, but no request is specified"),
    ],
)
def test_pod_bounds_apply_to_the_sum_of_containers(item, expected):
    """Containers and sidecars, and the largest init container; without the overhead of a RuntimeClass."""
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}}],
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}},
            {"name": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}},
        ],
        "overhead": {"cpu": "10"},
    }  # fmt: skip
    found = quotas.objection(spec, [_range({"type": "Pod", **item})])
    assert expected in found if expected else found == ""


def test_pod_level_resources_replace_the_sum():
    """KEP-2837."""
    spec = _spec(resources={"requests": {"cpu": "1"}, "limits": {"cpu": "2"}})
    assert quotas.objection(spec, [_range({"type": "Pod", "max": {"cpu": "2"}})]) == ""
    assert "limit is 2" in quotas.objection(spec, [_range({"type": "Pod", "max": {"cpu": "1"}})])


def test_ignores_ranges_for_claims():
    """They have no rules for pods."""
    item = {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}
    assert quotas.read_limit_range({"metadata": {"name": "r"}, "spec": {"limits": [item]}}) is None
