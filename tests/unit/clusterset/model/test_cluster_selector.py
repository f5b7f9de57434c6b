"""The clusterSelector annotation is parsed strictly, and an invalid one never crashes its reader."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import cluster_selector, names

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WHOLE = {
    "nodeSelector": {"disk": "ssd"},
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    },
    "tolerations": [{"key": "a", "operator": "Exists"}],
}


def test_all_members_are_read() -> None:
    """nodeSelector, affinity and tolerations are returned unchanged."""
    assert cluster_selector.parse(json.dumps(WHOLE)) == WHOLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ('{"nodeSelector": null, "affinity": {}, "tolerations": []}', {}),
        ('{"nodeSelector": {"a": "b"}, "other": 1}', {"nodeSelector": {"a": "b"}}),
    ],
)
def test_members_are_optional(text: str, expected: dict[str, Any]) -> None:
    """Absent, null and empty members are left out, and so are unknown ones."""
    assert cluster_selector.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "clusterSelector: not JSON"),
        ("{", "clusterSelector: not JSON"),
        ("[" * 100_000, "clusterSelector: not JSON"),
        ("[]", "clusterSelector: expected a JSON object"),
        ("null", "clusterSelector: expected a JSON object"),
        ('{"nodeSelector": []}', "clusterSelector.nodeSelector: expected `object"),
        ('{"nodeSelector": {"a": 1}}', "clusterSelector.nodeSelector[...]: expected `str`, got `int`"),
        ('{"nodeSelector": {"a": null}}', "clusterSelector.nodeSelector[...]: expected `str`, got `null`"),
        ('{"affinity": "x"}', "clusterSelector.affinity: expected `object"),
        ('{"affinity": {"nodeAffinity": []}}', "clusterSelector.affinity.nodeAffinity: expected `object"),
        ('{"affinity": {"nodeAffinity": 5}}', "clusterSelector.affinity.nodeAffinity: expected `object"),
        ('{"tolerations": {}}', "clusterSelector.tolerations: expected `array"),
        ('{"tolerations": [{}, 1]}', "clusterSelector.tolerations[1]: expected `object`"),
        (
            json.dumps({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": ["x"]}}}}),
            f"clusterSelector.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]: expected `object`",
        ),
    ],
)
def test_errors_name_the_member(text: str, message: str) -> None:
    """The error is one line that begins with the member's name, and the annotation is ignored."""
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        cluster_selector.parse(text)
    assert "\n" not in str(caught.value)
    assert cluster_selector.of({"clusterSelector": text}, "clusterSelector") is None


@pytest.mark.parametrize("annotations", [None, {}, {"other": "{}"}, {"clusterSelector": ""}])
def test_no_annotation_is_not_an_empty_selector(annotations: dict[str, str] | None) -> None:
    assert cluster_selector.of(annotations, names.ANNOTATION_CLUSTER_SELECTOR) is None
    assert cluster_selector.of({"clusterSelector": "{}"}, names.ANNOTATION_CLUSTER_SELECTOR) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.text(max_size=20)
    | st.fixed_dictionaries(
        {}, optional={"nodeSelector": JSON, "affinity": JSON, "tolerations": JSON, "x": JSON}
    ).map(json.dumps)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    """The result always has the shape that readers expect."""
    found = cluster_selector.of({"k": text}, "k")
    if found is None:
        return
    assert set(found) <= {"nodeSelector", "affinity", "tolerations"}
    assert all(isinstance(value, str) for value in found.get("nodeSelector", {}).values())
    assert isinstance(found.get("affinity", {}).get("nodeAffinity") or {}, dict)
    assert all(isinstance(item, dict) for item in found.get("tolerations", []))
