"""Moving fields and annotations are validated by the API server's rules; errors name the field."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from clusterset.model import cluster_selector
from controller_runtime.objects import from_dict
from webhook import server
from webhook.mutation import mutate
from webhook.mutation.mutate import Surroundings
from webhook.mutation.validation import RefusedError
from webhook.server import review_pod, review_workload

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}


def _pod(spec: dict[str, Any] | None = None, selector: Any = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "web", "labels": {"virtual-pod": "true"}}
    if selector is not None:
        text = selector if isinstance(selector, str) else json.dumps(selector)
        metadata["annotations"] = {"clusterSelector": text}
    return {"metadata": metadata, "spec": {"containers": [], **(spec or {})}}


def _affinity(*, required: Any = None, preferred: Any = None) -> dict[str, Any]:
    node_affinity: dict[str, Any] = {}
    if required is not None:
        node_affinity[REQUIRED] = {"nodeSelectorTerms": required}
    if preferred is not None:
        node_affinity[PREFERRED] = preferred
    return {"nodeAffinity": node_affinity}


def _expression(**expression: Any) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "gpu", **expression}]}


def _wide(letter: str, count: int) -> dict[str, Any]:
    return {
        "matchExpressions": [{"key": f"{letter}{number}", "operator": "Exists"} for number in range(count)]
    }


WRONG = [
    ({"nodeSelector": {"not a key!": "x"}}, "nodeSelector[not a key!]"),
    ({"nodeSelector": {"gpu": "not a value!"}}, "nodeSelector[gpu]"),
    (
        {"affinity": _affinity(required=[TERM, _expression(operator="Like", values=["x"])])},
        f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[1].matchExpressions[0].operator",
    ),
    (
        {"affinity": _affinity(required=[_expression(operator="In")])},
        "nodeSelectorTerms[0].matchExpressions[0].values",
    ),
    (
        {"affinity": _affinity(required=[_expression(operator="Exists", values=["x"])])},
        "nodeSelectorTerms[0].matchExpressions[0].values",
    ),
    (
        {"affinity": _affinity(required=[_expression(operator="Gt", values=["1", "2"])])},
        "nodeSelectorTerms[0].matchExpressions[0].values",
    ),
    (
        {"affinity": _affinity(required=[{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["n"]}]}])},
        "nodeSelectorTerms[0].matchFields[0].key",
    ),
    (
        {"affinity": _affinity(required=[{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n", "m"]}]}])},
        "nodeSelectorTerms[0].matchFields[0].values",
    ),
    (
        {"affinity": _affinity(preferred=[{"weight": 101, "preference": TERM}])},
        f"affinity.nodeAffinity.{PREFERRED}[0].weight",
    ),
    (
        {"affinity": _affinity(preferred=[{"weight": 1, "preference": _expression(operator="Like")}])},
        f"{PREFERRED}[0].preference.matchExpressions[0].operator",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_denies_invalid_spec_field_that_would_move(fields, message):
    """The API server does not validate the annotation. The lower one would refuse the pod only after its binding."""
    with pytest.raises(RefusedError) as refused:
        mutate.mutate(_pod(fields), Surroundings())
    assert str(refused.value).startswith("spec.")
    assert message in str(refused.value)


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_denies_same_field_in_annotation(fields, message):
    with pytest.raises(RefusedError) as refused:
        mutate.mutate(_pod(selector=fields), Surroundings())
    assert str(refused.value).startswith("metadata.annotations[clusterSelector].")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("{", "not JSON"),
        ({"nodeSelector": {"gpu": 1}}, "nodeSelector"),
        ({"affinity": {"nodeAffinity": {REQUIRED: []}}}, REQUIRED),
        ({"affinity": _affinity(required="gpu")}, "nodeSelectorTerms: expected `array"),
        ({"affinity": _affinity(required=[])}, "nodeSelectorTerms: write at least one"),
        ({"affinity": _affinity(required=["gpu"])}, "nodeSelectorTerms[0]: expected `object"),
        ({"affinity": _affinity(required=[{"matchExpressions": {"gpu": "yes"}}])}, "matchExpressions: expected `array"),
        ({"affinity": _affinity(required=[_expression(operator="In", values=[1])])}, "values[0]: expected `str`, got `int`"),
        ({"affinity": _affinity(preferred={})}, f"{PREFERRED}: expected `array"),
        ({"affinity": _affinity(preferred=[{"weight": 1}])}, f"{PREFERRED}[0].preference: write an object"),
        ({"tolerations": [{"key": "a", "operator": "Like"}]}, "tolerations[0].operator"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations[0].value"),
        ({"tolerations": [{"value": "b"}]}, "tolerations[0].key"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "tolerations[0].effect"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 5}]}, "tolerations[0].tolerationSeconds"),
        ({"affinity": _affinity(required=[TERM]), "upperNodeSelectorTerms": [{}, {}]}, "upperNodeSelectorTerms"),
    ],
)  # fmt: skip
def test_denies_annotation_with_wrong_types(selector, message):
    """A spec cannot have these errors, because the API server decodes it."""
    with pytest.raises(RefusedError) as refused:
        mutate.mutate(_pod(selector=selector), Surroundings())
    assert str(refused.value).startswith("metadata.annotations[clusterSelector]")
    assert message in str(refused.value)


def test_allows_all_valid_fields():
    """All operators, a prefixed key, an empty value, and the mutation's own output."""
    terms = [
        _expression(operator=operator, **values)
        for operator, values in (
            ("In", {"values": ["a", ""]}), ("NotIn", {"values": ["b"]}), ("Exists", {}), ("DoesNotExist", {"values": []}),
            ("Gt", {"values": ["3"]}), ("Lt", {"values": ["9"]}),
        )
    ] + [{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]  # fmt: skip
    spec = {
        "nodeSelector": {"example.com/gpu": "", "clusterID": "a"},
        "affinity": _affinity(required=terms, preferred=[{"weight": 100, "preference": TERM}]),
        "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoSchedule"}],
    }
    once = mutate.mutate(_pod(spec), Surroundings())
    assert mutate.mutate(once, Surroundings()) == once
    assert cluster_selector.parse(once["metadata"]["annotations"]["clusterSelector"])["tolerations"]


@pytest.mark.parametrize(
    "pod",
    [
        _pod({"affinity": _affinity(required=[TERM] * 50_000)}),
        _pod({"affinity": _affinity(preferred=[{"weight": 1, "preference": TERM}] * 40_000)}),
        _pod({"tolerations": [{"key": f"a{number}", "operator": "Exists"} for number in range(40_000)]}),
        _pod(selector={"tolerations": [{"key": f"a{number}", "operator": "Exists"} for number in range(40_000)]}),
        _pod({"affinity": _affinity(required=[_expression(operator="In", values=[str(number)]) for number in range(900)])},
             {"affinity": _affinity(required=[_expression(operator="In", values=[f"b{number}"]) for number in range(900)])}),
        _pod({"affinity": _affinity(required=[_wide("a", 900)] * 30)}, {"affinity": _affinity(required=[_wide("b", 900)] * 30)}),
        _pod({"affinity": _affinity(required=[_expression(operator="In", values=[f"v{number}" for number in range(900)])] * 100)}),
        _pod({"nodeSelector": {f"a{number}": "x" for number in range(20_000)}}),
        _pod({"affinity": _affinity(required=[_expression(operator="In", values=[str(number)]) for number in range(200)])},
             {"affinity": _affinity(required=[_wide("b", 200)])}),
        _pod({"affinity": _affinity(required=[TERM])}, {"affinity": _affinity(required=[TERM]), "upperNodeSelectorTerms": [_wide("b", 1000)]}),
        _pod({"tolerations": [{"key": f"a{number}", "operator": "Exists"} for number in range(200)]},
             {"tolerations": [{"key": f"b{number}", "operator": "Exists"} for number in range(200)]}),
        _pod({"affinity": _affinity(preferred=[{"weight": 1, "preference": _wide(f"a{number}", 1)} for number in range(200)])},
             {"affinity": _affinity(preferred=[{"weight": 1, "preference": _wide(f"b{number}", 1)} for number in range(200)])}),
        _pod({"nodeSelector": {f"a{number}": "x" for number in range(200)}}, {"nodeSelector": {f"b{number}": "x" for number in range(200)}}),
    ],
    ids=["terms", "preferences", "tolerations", "annotation", "product", "expressions", "values", "nodeSelector", "wide product",
         "upper terms", "both tolerations", "both preferences", "both nodeSelectors"],
)  # fmt: skip
def test_denies_lists_that_take_long(pod):
    """Also if only the pod and its annotation together are too large. The result would be denied at the next call."""
    begun = time.process_time()
    with pytest.raises(RefusedError, match="Write at most"):
        mutate.mutate(pod, Surroundings())
    assert time.process_time() - begun < 1


def _preferences(letter: str, count: int) -> dict[str, Any]:
    terms = (
        {"matchExpressions": [{"key": f"{letter}{number}", "operator": "Exists"}]} for number in range(count)
    )
    return {"affinity": _affinity(preferred=[{"weight": 1, "preference": term} for term in terms])}


@pytest.mark.parametrize(
    "pod",
    [
        _pod(_preferences("a", 125), _preferences("b", 125)),
        _pod({"tolerations": [{"key": f"a{number}", "operator": "Exists"} for number in range(120)]},
             {"tolerations": [{"key": f"b{number}", "operator": "Exists"} for number in range(120)]}),
        _pod({"affinity": _affinity(required=[_wide("a", 11)] * 11)}, {"affinity": _affinity(required=[_wide("b", 125)])}),
        _pod({"affinity": _affinity(required=[_wide("a", 1)] * 120)}, {"affinity": _affinity(required=[_wide("b", 1)])}),
        _pod({"affinity": _affinity(required=[_expression(operator="In", values=[f"v{number}" for number in range(2500)])])}),
        _pod({}, {f"unknown{number}": 1 for number in range(20_000)}),
    ],
    ids=["preferences", "tolerations", "expressions", "product", "values", "unknown members"],
)  # fmt: skip
def test_largest_pods_take_no_long_time(pod):
    """Of pods that are admitted, each takes a few milliseconds, also with a thousand claims on virtual nodes."""
    surroundings = Surroundings(
        virtual_nodes={"vn-1", "vn-2", "vn-3"},
        pinned_to=[["vn-1", "vn-2"]] * 1000,
        require_virtual_node=True,
        frozen={"vn-3": datetime.now(UTC)},
        open_nodes=[from_dict({"metadata": {"name": f"vn-{number}"}}) for number in range(100)],
    )
    review = {"kind": {"kind": "Pod"}, "operation": "CREATE", "object": pod}
    knowledge = Mock(surroundings=Mock(return_value=surroundings))
    begun = time.process_time()
    answer = _answer(review, lambda request: review_pod(request, knowledge.surroundings))
    assert time.process_time() - begun < 0.1
    assert answer["allowed"] or "Write at most" in answer["status"]["message"]
    assert len(answer.get("warnings") or ()) <= 10
    if answer["allowed"]:
        once = mutate.mutate(pod, surroundings)
        assert mutate.mutate(once, surroundings) == once


def _answer(review: dict[str, Any], decide: Any) -> dict[str, Any]:
    request = server.parse(
        msgspec.json.encode(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "request": {"uid": "r", "namespace": "shop", **review},
            }
        )
    )
    found: dict[str, Any] = msgspec.json.decode(decide(request))["response"]
    return found


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ({"nodeselector": {"gpu": "yes"}}, "nodeselector"),
        ({"affinity": {"podAffinity": {REQUIRED: []}}}, "affinity.podAffinity"),
    ],
)
def test_warns_about_members_that_are_not_applied(selector, message):
    review = {"kind": {"kind": "Pod"}, "operation": "CREATE", "object": _pod(selector=selector)}
    answer = _answer(review, lambda request: review_pod(request, lambda _pod, _namespace: Surroundings()))
    assert answer["allowed"]
    (warning,) = answer["warnings"]
    assert f"metadata.annotations[clusterSelector].{message}" in warning


def _deployment(selector: str, **metadata: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"virtual-pod": "true"}, "annotations": {"clusterSelector": selector}},
        "spec": {},
    }
    return {"metadata": metadata, "spec": {"template": template}}


def _update(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    review = {"kind": {"kind": "Deployment"}, "operation": "UPDATE", "object": new, "oldObject": old}
    return _answer(review, review_workload)


def test_allows_updates_of_invalid_workload_that_keep_the_error_or_delete_it():
    """Controllers update it too, for example to remove a finalizer."""
    answer = _update(
        _deployment("["), _deployment("[", annotations={"deployment.kubernetes.io/revision": "2"})
    )
    assert answer["allowed"]
    assert "spec.template.metadata.annotations[clusterSelector]" in answer["warnings"][0]
    assert _update(_deployment("{}"), _deployment("[", deletionTimestamp="2026-01-01T00:00:00Z"))["allowed"]


def test_denies_update_that_makes_workload_invalid():
    answer = _update(_deployment("{}"), _deployment("["))
    assert not answer["allowed"]
    assert not _update(_deployment("["), _deployment('{"nodeSelector": 1}'))["allowed"]
