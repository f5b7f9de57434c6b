"""Properties of the mutation: it keeps the meaning of selectors and is idempotent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import cluster_selector
from controller_runtime.apimachinery import matching
from tests.unit.webhook.pods import NOT_READY, PROVIDER, VIRTUAL, requiring, web_pod
from webhook.mutation import mutate
from webhook.mutation.mutate import Surroundings, pod_patch

KEYS = st.sampled_from(["clusterID", "zone", "gpu"])


EXPRESSIONS = st.builds(
    lambda key, operator, value: (
        {"key": key, "operator": operator} | ({"values": [value]} if operator in {"In", "NotIn"} else {})
    ),
    KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.sampled_from(["1", "2"]),
)


TERMS = st.lists(
    st.builds(
        lambda expressions: {"matchExpressions": expressions}, st.lists(EXPRESSIONS, min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=3,
)


VALUES = st.sampled_from([None, "1", "2"])


def _labels(**values: str | None) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


@given(terms=TERMS, cluster=VALUES, zone=VALUES, gpu=VALUES)
def test_upper_and_lower_part_together_admit_the_same_nodes(terms, cluster, zone, gpu):
    """For every OR of ANDs and every pair of upper and lower node."""
    pod = web_pod({"affinity": requiring(*terms)})
    changed = mutate.mutate(pod, VIRTUAL)
    upper, lower = _labels(clusterID=cluster), _labels(zone=zone, gpu=gpu)
    expected = any(matching.matches_term(term, name="n", labels={**upper, **lower}) for term in terms)
    text = (changed["metadata"].get("annotations") or {}).get("clusterSelector")
    selector = cluster_selector.resolve(
        cluster_selector.parse(text) if text else {}, node_name="vn-a", node_labels=upper
    )
    upper_admits = matching.admits(
        {**changed["spec"], "tolerations": []}, name="vn-a", labels=upper, taints=[]
    )
    lower_admits = matching.admits(selector, name="n", labels=lower, taints=[])
    assert (upper_admits and lower_admits) == expected


@given(
    terms=st.none() | TERMS,
    selector=st.dictionaries(KEYS, st.sampled_from(["1", "2"])),
    frozen=st.sampled_from([{}, {"vn-a": datetime(2026, 1, 1, tzinfo=UTC)}]),
    tolerations=st.lists(
        st.sampled_from([NOT_READY, PROVIDER, {"key": "x", "operator": "Exists"}]), max_size=3
    ),
)
def test_mutation_is_idempotent_and_equals_its_patch(terms, selector, frozen, tolerations):
    spec: dict[str, Any] = {"nodeSelector": selector, "tolerations": tolerations}
    if terms:
        spec["affinity"] = requiring(*terms)
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), frozen=frozen)
    pod = web_pod(spec)
    once = mutate.mutate(pod, surroundings)
    assert mutate.mutate(once, surroundings) == once
    assert jsonpatch.apply_patch(pod, pod_patch(pod, once)) == once
