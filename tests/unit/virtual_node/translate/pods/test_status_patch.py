"""The patch between two statuses."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.virtual_node.translate.pods.pods import ready
from virtual_node.translate.pods import status as pod_status


def test_equal_statuses_need_no_patch():
    status = {"phase": "Running", "conditions": [ready("True")]}
    assert pod_status.status_patch(status, copy.deepcopy(status), uid="u") is None


def merge(current: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply a strategic merge patch to a pod status (a small reference implementation)."""
    result = dict(current)
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif field == "conditions":
            merged = {condition["type"]: dict(condition) for condition in current.get(field) or ()}
            for change in value:
                if change.get("$patch") == "delete":
                    merged.pop(change["type"], None)
                else:
                    entry = merged.setdefault(change["type"], {})
                    entry |= {key: text for key, text in change.items() if text is not None}
                    for key in [key for key, text in change.items() if text is None]:
                        entry.pop(key, None)
            result[field] = list(merged.values())
        elif field in {"podIPs", "hostIPs"}:
            assert value[0] == {"$patch": "replace"}
            result[field] = value[1:]
        else:
            result[field] = value
    return {field: value for field, value in result.items() if value not in ([], None)}


CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Ready", "PodScheduled", "Initialized"]),
            "status": st.sampled_from(["True", "False"]),
        },
        optional={"reason": st.sampled_from(["A", "B"])},
    ),
    max_size=3,
    unique_by=lambda condition: condition["type"],
)


STATUSES = st.fixed_dictionaries(
    {"phase": st.sampled_from(["Pending", "Running"])},
    optional={
        "podIP": st.sampled_from(["1.1.1.1", "2.2.2.2"]),
        "podIPs": st.lists(
            st.fixed_dictionaries({"ip": st.sampled_from(["1.1.1.1", "2.2.2.2"])}), min_size=1, max_size=2
        ),
        "conditions": CONDITIONS,
        "reason": st.just("Because"),
    },
)


@given(STATUSES, STATUSES)
def test_the_patch_produces_the_desired_status(current, desired):
    """Applied as strategic merge."""
    patch = pod_status.status_patch(current, desired, uid="u")
    found = merge(current, (patch or {}).get("status") or {})
    wanted = {field: value for field, value in desired.items() if value != []}

    def canonical(status: dict[str, Any]) -> dict[str, Any]:
        conditions = sorted(status.get("conditions") or [], key=lambda condition: condition["type"])
        return {**status, "conditions": conditions}

    assert canonical(found) == canonical(wanted)


def test_the_patch_has_a_uid_precondition():
    """And annotations."""
    patch = pod_status.status_patch({}, {"phase": "Running"}, uid="u", annotations={"a": "b"})
    assert patch == {"metadata": {"uid": "u", "annotations": {"a": "b"}}, "status": {"phase": "Running"}}
