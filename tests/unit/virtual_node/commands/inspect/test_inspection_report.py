"""What the report as a whole says: amounts, keys without values, second looks, exit codes and the last line."""

from __future__ import annotations

import pytest

from tests.unit.virtual_node.commands.healthy_clusters import (
    NOW,
    OPTIONS,
    Change,
    both,
    healthy,
    leaking,
    meta,
    upper,
    waiting_for,
    worries,
)
from virtual_node.commands.inspect import rules
from virtual_node.commands.inspect.facts import FOREIGN_POD, Facts, Finding
from virtual_node.translate.objects import copies


def test_a_pod_that_fits_no_free_place_is_a_warning():
    """A lower node would be large enough, but every one is taken: somebody may want to make room."""
    facts = healthy()
    waiting_for("4")(facts)
    for name in ("n1", "n2"):
        taken = {"containers": [{"resources": {"requests": {"cpu": "3"}}}], "nodeName": name}
        facts.lowers[0].objects[FOREIGN_POD].append(
            {"metadata": meta(name, name), "spec": taken, "status": {"phase": "Running"}}
        )
    upper(facts, "Node")["status"]["allocatable"]["cpu"] = "2"
    upper(facts, "Node")["status"]["allocatable"]["pods"] = "18"
    assert worries(facts=facts) == [("warning", "capacity", "Pod", "shop/web")]


def test_capacity_tells_the_roomiest_node_and_what_is_lost():
    """A promise of eight cores is no place for a pod of five: the report says how large a pod may be."""
    found = rules.inspect(healthy())
    (usable,) = [one for one in found if one.check == "capacity"]
    assert usable.severity == "info"
    assert "8 cpu (largest place 4, 0% not usable)" in usable.message


def test_values_of_copies_are_never_shown():
    """A drifted Secret is told by its keys alone."""
    facts = healthy()
    secret = {"kind": "Secret", "metadata": meta("key", "u-key"), "data": {"token": "c2VjcmV0"}}
    lower_copy = copies.lower_copy(secret, OPTIONS)
    facts.upper.objects["Secret"].append(secret)
    facts.lowers[0].objects["Secret"].append({**lower_copy, "data": {"token": "b2xk", "more": "eA=="}})
    (drift,) = [one for one in rules.inspect(facts) if one.check == "drift"]
    assert drift.message == "differs from upper Secret shop/key in data[more], data[token]"


def test_other_upper_clusters_are_counted_and_not_blamed():
    """What another upper cluster made below is nobody's business here."""
    facts = healthy()
    leaking("ConfigMap", labels={"virtual-node.io/upper-cluster": "somebody"})(facts)
    leaking(FOREIGN_POD, labels={"virtual-node.io/upper-cluster": "somebody"})(facts)
    (others,) = [one for one in rules.inspect(facts) if one.check == "others"]
    assert (others.severity, others.message) == (
        "info",
        "2 objects belong to another upper cluster, somebody",
    )


def test_without_an_identity_nothing_below_is_blamed():
    """Who may not read kube-system cannot tell what is ours: that is said, and nothing else is."""
    facts = healthy()
    leaking("Pod")(facts)
    unknown = Facts(upper=facts.upper, lowers=facts.lowers, cluster_id="", now=NOW)
    assert worries(facts=unknown) == [("warning", "unread", "Namespace", "kube-system")]


def test_a_second_look_drops_what_was_on_its_way():
    """Transient findings must be there twice; others, and new ones that do not pass, count at once."""

    def look(*changes: Change) -> list[Finding]:
        facts = healthy()
        both(*changes)(facts)
        return rules.inspect(facts)

    first = look(leaking("Pod"))
    assert next(one.check for one in rules.confirmed(first, look(leaking("Pod")))) == "leaked"
    assert "leaked" not in {one.check for one in rules.confirmed(first, look())}
    assert "leaked" not in {one.check for one in rules.confirmed(look(), first)}
    clock = look(lambda facts: setattr(facts.upper, "clock_skew", 9.0))
    assert "clock" in {one.check for one in rules.confirmed(look(), clock)}


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
    """Findings count from the level on that was asked for; a cluster that could not be read always does."""
    facts = healthy()
    if change is not None:
        change(facts)
    assert rules.exit_code(facts, rules.inspect(facts), fail_on=fail_on) == expected


def test_summary():
    """One line, with singular and plural as they should be."""
    facts = healthy()
    assert rules.summary(facts, rules.inspect(facts)) == "2 clusters, 1 pod: nothing to worry about"
    for kind in ("Pod", "Secret", "ConfigMap"):
        leaking(kind)(facts)
    assert rules.summary(facts, rules.inspect(facts)) == "2 clusters, 1 pod: 1 error, 2 warnings"
