"""The report as a whole: amounts, keys without values, second reads, exit codes and the last line."""

from __future__ import annotations

import pytest

from tests.unit.virtual_node.commands.healthy_clusters import (
    OPTIONS,
    Change,
    bodies,
    both,
    examined,
    forget,
    gone,
    healthy,
    inspect,
    leaking,
    meta,
    upper,
    waiting_for,
    worries,
)
from tests.unit.virtual_node.translate.copying import lower_copy, view_of
from virtual_node.commands import inspect as command
from virtual_node.examine import reading
from virtual_node.examine.clusters import CLOCK_SKEW, FOREIGN_PODS, IDENTITY, replica
from virtual_node.examine.engine import examine


def test_a_pod_without_free_room_is_a_warning():
    """A lower node would be large enough, but each is occupied."""
    facts = healthy()
    waiting_for("4")(facts)
    for name in ("n1", "n2"):
        taken = {"containers": [{"resources": {"requests": {"cpu": "3"}}}], "nodeName": name}
        bodies(facts.lowers[0], FOREIGN_PODS).append(
            {"metadata": meta(name, name), "spec": taken, "status": {"phase": "Running"}}
        )
    upper(facts, "Node")["status"]["allocatable"]["cpu"] = "2"
    upper(facts, "Node")["status"]["allocatable"]["pods"] = "18"
    assert worries(facts=facts) == [("warning", "capacity", "Pod", "shop/web")]


def test_capacity_names_the_largest_node_and_the_difference():
    """Eight cores in sum may have no room for a pod of five: the report has the largest possible pod."""
    found = inspect(healthy())
    (usable,) = [one for one in found if one.check == "capacity"]
    assert usable.severity == "info"
    assert "8 cpu (largest place 4, 0% not usable)" in usable.message


@pytest.mark.parametrize(("cpu", "is_too_much"), [("5", False), ("6", True)])
def test_own_pods_of_a_cordoned_node_count_as_room_that_is_used(cpu, is_too_much):
    """The virtual node adds what they use to the sum of the other nodes."""
    facts = healthy()
    bodies(facts.lowers[0], "Node")[0]["spec"] = {"unschedulable": True}
    upper(facts, "Node")["status"]["allocatable"] |= {"cpu": cpu, "memory": "8Gi", "pods": "11"}
    found = [one.message for one in inspect(facts) if one.check == "capacity"]
    assert any(
        "promises more than its lower nodes have: 6 cpu (there are 5 cpu)" in one for one in found
    ) is (is_too_much)


def test_values_of_copies_are_never_shown():
    """A drifted Secret is reported by its keys alone."""
    facts = healthy()
    secret = {"kind": "Secret", "metadata": meta("key", "u-key"), "data": {"token": "c2VjcmV0"}}
    copy = lower_copy("Secret", secret, view_of(cluster_id=OPTIONS.owner.cluster_id))
    bodies(facts.upper, "Secret").append(secret)
    bodies(facts.lowers[0], "Secret").append({**copy, "data": {"token": "b2xk", "more": "eA=="}})
    (drift,) = [one for one in inspect(facts) if one.check == "drift"]
    assert drift.message == "differs from upper Secret shop/key in data[more], data[token]"


def test_objects_of_other_upper_clusters_are_only_counted():
    facts = healthy()
    leaking("ConfigMap", labels={"virtual-node.io/upper-cluster": "somebody"})(facts)
    leaking(FOREIGN_PODS, labels={"virtual-node.io/upper-cluster": "somebody"})(facts)
    (others,) = [one for one in inspect(facts) if one.check == "others"]
    assert (others.severity, others.message) == (
        "info",
        "2 objects belong to another upper cluster, somebody",
    )


def test_without_an_identity_lower_objects_are_not_judged():
    """Without access to kube-system ownership is unknown; only this is reported."""
    facts = healthy()
    leaking("Pod")(facts)
    facts.upper.put(IDENTITY, "")
    assert worries(facts=facts) == [("warning", "unread", "Namespace", "kube-system")]


def test_a_second_read_drops_transient_findings():
    """They must occur twice; persistent ones count at once."""

    def looked(change: Change | None, again: Change | None) -> set[str]:
        first, second = healthy(), healthy()
        for facts, changed in ((first, change), (second, again)):
            if changed is not None:
                changed(facts)
        reading.add_installation(second)
        found = examine(second, levels=command.LEVELS, first=examined(first)).findings
        return {one.code.check for one in found if one.severity != "info"}

    leaks = leaking("Pod")
    assert looked(leaks, leaks) == {"leaked"}
    assert looked(leaks, None) == looked(None, leaks) == set()
    # A finding that is not transient counts without the second read.
    assert looked(lambda facts: facts.upper.put(CLOCK_SKEW, 9.0), None) == {"clock"}
    assert looked(leaks, lambda facts: facts.lowers[0].fail("refused")) == {"unread"}
    # A list that only the first read got confirms nothing.
    assert looked(gone("Namespace"), lambda facts: forget(facts.upper, "Namespace")) == set()


def test_a_second_read_applies_only_rules_with_transient_findings():
    """The rule about unread clusters is always applied, because a cluster may stop to answer between the reads."""

    def rules(change: Change | None) -> set[str]:
        facts = healthy()
        if change:
            change(facts)
        return {rule.name for rule in examined(facts).doubtful}

    assert rules(None) == rules(lambda facts: facts.upper.put(CLOCK_SKEW, 9.0)) == set()
    assert rules(leaking("Pod")) == {"leaked"}
    drifted = both(leaking("Secret"), lambda facts: upper(facts)["metadata"]["labels"].update(app="x"))
    assert rules(drifted) == {"leaked", "pod_drift"}


@pytest.mark.parametrize(
    ("change", "fail_on", "expected"),
    [
        (None, "warning", 0),
        (leaking("Secret"), "warning", 1),
        (leaking("Secret"), "error", 0),
        (leaking("Pod"), "error", 1),
        (leaking("Pod"), "never", 0),
        (lambda facts: setattr(facts.lowers[0], "error", "refused"), "never", 3),
    ],
)
def test_exit_code(change, fail_on, expected):
    """Findings count from the requested level; an unreadable cluster always does."""
    facts = healthy()
    if change is not None:
        change(facts)
    assert command.exit_code(facts, inspect(facts), fail_on=fail_on) == expected


def test_summary():
    """One line, with correct singular and plural."""
    facts = healthy()
    assert command.summary(facts, inspect(facts)) == "2 clusters, 1 pod: no findings"
    for kind in ("Pod", "Secret", "ConfigMap"):
        leaking(kind)(facts)
    assert command.summary(facts, inspect(facts)) == "2 clusters, 1 pod: 1 error, 2 warnings"


def test_a_cluster_has_the_replica_that_runs_it():
    """From the Lease of its virtual node; empty if that is unknown, and for the upper cluster."""
    facts = healthy()
    assert replica(facts, facts.lowers[0]) == ""
    upper(facts, "Lease")["metadata"]["annotations"] = {"virtual-node.io/replica": "vn-1"}
    assert [replica(facts, one) for one in facts.clusters] == ["", "vn-1"]
