"""ResourceClaims between a pod's spec, its annotation and its lower pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from clusterset.model.pod import resource_claims

NAME = st.sampled_from(["a", "b", "c", "gpu"])
SOURCE = st.one_of(
    st.builds(lambda name: {"resourceClaimName": name}, NAME),
    st.builds(lambda name: {"resourceClaimTemplateName": name}, NAME),
)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A pod spec with claims, as an API server admits it."""
    entries = draw(st.dictionaries(NAME, SOURCE, min_size=1))
    uses = st.lists(st.sampled_from(sorted(entries)), unique=True)

    def container(name: str) -> dict[str, Any]:
        claims = [{"name": one} for one in draw(uses)]
        amounts = draw(st.sampled_from([{}, {"requests": {"cpu": "1"}}]))
        resources = {**amounts, **({"claims": claims} if claims else {})}
        return {"name": name, "image": "i", **({"resources": resources} if resources else {})}

    return {
        "containers": [container("main"), container("side")],
        "initContainers": [container("init")],
        "resourceClaims": [{"name": name, **source} for name, source in entries.items()],
    }


def pod(spec: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    """A pod, with the annotation if there is a text."""
    annotations = {} if text is None else {names.ANNOTATION_RESOURCE_CLAIMS: text}
    return {"metadata": {"name": "web", "annotations": annotations}, "spec": spec}


@given(specs())
def test_lower_pod_gets_back_what_was_moved(spec):
    """The upper spec has no claims meanwhile, and amounts of resources stay."""
    rest, text = resource_claims.move(spec)
    assert "claims" not in json.dumps(rest).lower()
    moved = pod(rest, text)
    assert resource_claims.invalid(moved) == ""
    assert resource_claims.references(moved) == spec["resourceClaims"]
    lower = dict(rest)
    resource_claims.restore(lower, moved)
    for kind in ("containers", "initContainers"):
        for got, wanted in zip(lower[kind], spec[kind], strict=True):
            resources = {key: value for key, value in got.get("resources", {}).items() if value}
            assert resources == wanted.get("resources", {})
    assert lower["resourceClaims"] == spec["resourceClaims"]


def test_claims_in_the_spec_are_kept():
    """The webhook was not asked to move them, or the pod has a node already."""
    spec = {
        "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}],
    }
    lower = {"containers": spec["containers"]}
    resource_claims.restore(lower, pod(spec))
    assert lower == spec


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[" * 5000, "not JSON: JSON is nested too deeply"),
        ("7", "Expected `object`, got `int`"),
        ({"resourceClaims": "gpu"}, "Expected `array`, got `str` - at `$.resourceClaims`"),
        ({"resourceClaims": [{"name": 1e300}]}, "Expected `str`"),
        ({"resourceClaims": [{"name": "a"}]}, "resourceClaims[0]: write either"),
        (
            {"resourceClaims": [{"name": "a", "resourceClaimName": "x", "resourceClaimTemplateName": "y"}]},
            "resourceClaims[0]: write either",
        ),
        (
            {"resourceClaims": [{"name": "a", "resourceClaimName": "x"}] * 2},
            "resourceClaims[1].name: 'a': write a name that no other entry has",
        ),
        (
            {"resourceClaims": [], "containers": {"main": [{"name": "a"}]}},
            "container 'main': resources.claims: 'a' is not in resourceClaims",
        ),
        (
            {"resourceClaims": [{"name": str(n), "resourceClaimName": "x"} for n in range(300)]},
            "300 are too many; at most 256",
        ),
        ({"resourceClaims": [], "containers": {"main": [7]}}, "Expected `object`, got `int`"),
        ({"resourceClaims": [], "more": "x" * 70_000}, "characters are too many; at most 65,536"),
        (
            {"resourceClaims": [], "containers": {"x" * 9999: [{"name": "y" * 9999}]}},
            f"container '{'x' * 63}': resources.claims: '{'y' * 63}' is not in resourceClaims",
        ),
    ],
)
def test_an_invalid_annotation_is_reported_and_restores_nothing(content: Any, said: str):
    """Users can write the annotation."""
    hostile = pod({"containers": []}, content if isinstance(content, str) else json.dumps(content))
    assert said in resource_claims.invalid(hostile)
    assert resource_claims.references(hostile) == []
    lower: dict[str, Any] = {"containers": []}
    resource_claims.restore(lower, hostile)
    assert lower == {"containers": []}


def test_a_huge_annotation_is_read_once_for_all_virtual_nodes():
    """Otherwise the pod of one tenant would keep the multi-scheduler busy for seconds."""
    uses = {"main": [{"name": "a"}] * 4000}
    valid = {"resourceClaims": [{"name": "a", "resourceClaimName": "b"}], "containers": uses}
    for content in (valid, {"resourceClaims": [], "containers": uses}):
        text = json.dumps(content)
        resource_claims._parsed.cache_clear()
        for _ in range(100):
            hostile = pod({"containers": []}, text)
            resource_claims.invalid(hostile)
            resource_claims.references(hostile)
        assert resource_claims._parsed.cache_info().misses == 1


def test_an_annotation_beside_claims_in_the_spec_is_invalid():
    """It is not clear which of them applies."""
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]}
    both = pod({"containers": [], **claims}, json.dumps(claims))
    assert "remove one of the two" in resource_claims.invalid(both)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda one: st.lists(one) | st.dictionaries(
    st.sampled_from(["resourceClaims", "containers", "name", "resourceClaimName", "main"]), one)))  # fmt: skip
def test_no_content_of_the_annotation_raises(content):
    """A malformed value of one tenant must not stop the process."""
    hostile = pod({"containers": [{"name": "main"}]}, json.dumps(content))
    lower: dict[str, Any] = {"containers": [{"name": "main"}]}
    resource_claims.restore(lower, hostile)
    assert resource_claims.invalid(hostile) or resource_claims.references(hostile) is not None
