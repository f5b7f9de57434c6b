"""Which virtual nodes a claim ties a pod to."""

from __future__ import annotations

from webhook import state


def _claim(**spec: str) -> dict:
    return {"metadata": {"annotations": {}}, "spec": spec}


def test_volume_affinity_precedes_selected_node():
    """Real upper nodes are ignored."""
    term = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["vn-a", "real"]}]
    }
    bound = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}
    found = state.pinned_to(_claim(volumeName="pv"), volume=lambda _name: bound, virtual_nodes={"vn-a"})
    assert found == ["vn-a"]
    selected = _claim()
    selected["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "vn-a"
    assert state.pinned_to(selected, volume=lambda _name: None, virtual_nodes={"vn-a"}) == ["vn-a"]
    assert state.pinned_to(selected, volume=lambda _name: None, virtual_nodes={"vn-b"}) == []
    assert state.pinned_to(_claim(volumeName="pv"), volume=lambda _name: None, virtual_nodes={"vn-a"}) == []
