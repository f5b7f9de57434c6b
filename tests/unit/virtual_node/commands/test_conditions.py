"""A condition is one rule and one code, which ``check``, ``doctor`` and ``inspect`` show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.virtual_node.commands.doctor_facts import healthy, links_of, lower_cluster
from tests.unit.virtual_node.commands.healthy_clusters import healthy as clusters
from tests.unit.virtual_node.commands.healthy_clusters import inspect
from virtual_node.commands import check, doctor
from virtual_node.commands.doctor import State
from virtual_node.examine import engine
from virtual_node.examine.codes import Code, Link
from virtual_node.examine.engine import HEALTH, RULES, WAY, Level, rule
from virtual_node.examine.facts import API_ACCESS, NAMES, PROFILES, ApiAccess, Names, Webhook
from virtual_node.examine.finding import Findings
from virtual_node.examine.health import Verdict, health
from virtual_node.examine.snapshot import Snapshot
from virtual_node.translate.pods.api_server import MISMATCH, NOT_USABLE

DIFFERENT = Names(domain="app.pre", servers=[])
MIXED = ApiAccess("Lower", identities=True)


def _event(message: str) -> dict[str, Any]:
    return {"reason": MISMATCH, "message": message, "involvedObject": {"namespace": "shop", "name": "web"}}


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (Code.NAMES_DIFFER, "the domain there is app.pre, so pods do not find others by NAME.NAMESPACE.svc.cluster.local"),
        (Code.API_MISMATCH, "the lower API servers refuse the upper tokens that pods get (kubernetesService: Lower)"),
    ],
)  # fmt: skip
def test_check_and_inspect_show_a_condition_with_the_same_words(code: Code, cause: str):
    """As a remark, which is no failure."""
    facts = clusters()
    facts.upper.put(API_ACCESS, MIXED)
    facts.lowers[0].put(NAMES, DIFFERENT)
    (found,) = (row for row in inspect(facts) if row.check == code.check)
    assert (found.severity, found.message) == ("info", cause)
    alone = Snapshot(datetime.now(UTC), lowers=[lower_cluster(domain="app.pre", servers=[])])
    alone.upper.put(API_ACCESS, MIXED)
    shown = [row for row in check.rows(alone) if row.detail == f"warning: {cause}"]
    assert [(row.ok, row.fix) for row in shown] == [(True, found.next_step)]


def test_doctor_shows_both_as_warnings():
    """It knows no configuration, so the API of pods is judged by the events of pods."""
    said = "The pod gets a token of the upper cluster, but its annotation gives it the address. Use Auto"
    links = links_of(healthy(events=[_event(said)], lower=[lower_cluster(domain="app.pre")]))
    assert links["names"].detail.startswith(
        "warning: a.yaml: the domain there is app.pre, so pods do not find"
    )
    assert links["apiOfPods"].detail == f"warning: {said.removesuffix('. Use Auto')}"
    assert links["apiOfPods"].next == "Use Auto"


def test_a_refused_cluster_profile_fails_check_and_is_a_warning_of_inspect():
    """The other clusters work, so an inspection in CI does not fail."""
    facts = clusters()
    facts.upper.put(PROFILES, {"fleet/tokyo": "it has no provider"})
    (row,) = [one for one in check.rows(facts) if one.check == "ClusterProfile"]
    assert (row.ok, row.detail) == (False, "ClusterProfile fleet/tokyo is not used: it has no provider")
    (found,) = [one for one in inspect(facts) if one.check == "configuration"]
    assert (found.severity, found.object, found.message) == (
        "warning",
        "fleet/tokyo",
        "is not used: it has no provider",
    )
    facts.upper.refuse(PROFILES, "no such file: providers.yaml")
    (row,) = [one for one in check.rows(facts) if one.check == "ClusterProfile"]
    assert (row.detail, row.fix) == ("ClusterProfile *: cannot be read", "no such file: providers.yaml")


def test_events_have_the_codes_of_their_conditions():
    """So that a rule recognizes an event, and a person finds both under one name."""
    assert (MISMATCH, NOT_USABLE) == (Code.API_MISMATCH, Code.API_NOT_USABLE)


def test_every_condition_that_doctor_can_find_has_its_link():
    """Otherwise ``doctor`` would read facts and not show what is wrong with them."""
    known = {code for rule in RULES if rule.level in HEALTH for code in rule.codes}
    assert {code for code in known if not code.link} == set()


def test_every_condition_of_the_way_of_pods_has_a_title_in_check():
    """Its own, or the name of the check of ``inspect``, or the code."""
    codes = {code for rule in RULES if rule.level in WAY for code in rule.codes}
    assert {code for code in codes if not (code.check or code.link or code in check._TITLES)} == set()


def test_a_rule_that_fails_makes_its_link_unknown():
    """A malformed object is no reason to report that a link holds."""
    facts = healthy(webhook=Webhook(configurations=[{"webhooks": [{}]}]))
    link = links_of(facts)["webhook"]
    assert (link.state, "failed, so its findings are missing: KeyError" in link.detail) == (
        State.UNKNOWN,
        True,
    )
    assert not doctor.holds(doctor.judged(facts))


def test_every_link_of_doctor_can_be_broken_by_a_condition():
    """A link without a code would always hold."""
    assert {code.link for code in Code if code.link} == {*Link}


def _new_rule(monkeypatch: pytest.MonkeyPatch, code: Code, level: Level) -> None:
    """Register a rule that always finds a new condition."""
    monkeypatch.setattr(engine, "RULES", [*RULES])
    for module in ("virtual_node.commands.doctor", "virtual_node.examine.health"):
        monkeypatch.setattr(f"{module}.RULES", engine.RULES)

    @rule(code, level=level)
    def is_new(snapshot: Snapshot, *_lower: Any) -> Findings:
        yield snapshot.upper.finding(code, "Installation", "new", "is a new condition", "do this")


def test_a_new_rule_about_the_installation_is_shown_by_all_tools(monkeypatch: pytest.MonkeyPatch):
    """``status``, page and metrics show the health; none of them names the rule or its code."""
    _new_rule(monkeypatch, Code.NODE_CLOSED, Level.INSTALLATION)
    found = health(healthy())
    assert (found.verdict, found.sentence) == (Verdict.FAULTY, "Installation new is a new condition")
    assert [(one["kind"], one["next"]) for one in found.data()["faults"]] == [("NodeClosed", "do this")]
    assert found.counts()[Code.NODE_CLOSED] == 1
    assert links_of(healthy())["taints"].detail == "Installation new is a new condition"
    assert [row.message for row in inspect(clusters()) if row.check == "node"] == ["is a new condition"]


@pytest.mark.parametrize("level", [Level.PATH, Level.LOWER])
def test_a_new_remark_is_shown_by_all_tools(level: Level, monkeypatch: pytest.MonkeyPatch):
    """It is no fault for any of them."""
    _new_rule(monkeypatch, Code.API_NOT_USABLE, level)
    lower = lower_cluster()
    found = health(healthy(lower=[lower]))
    assert (found.verdict is Verdict.FAULTY, found.is_broken, found.faults) == (False, False, [])
    assert [(one["kind"], one["cause"]) for one in found.data()["remarks"]] == [
        ("APIServerNotUsable", "is a new condition")
    ]
    assert found.remark_counts()[Code.API_NOT_USABLE] == 1
    assert (
        links_of(healthy(lower=[lower]))["apiOfPods"].detail == "warning: Installation new is a new condition"
    )
    alone = Snapshot(datetime.now(UTC), lowers=[lower])
    assert [row.detail for row in check.rows(alone) if row.fix == "do this"] == [
        "warning: Installation new is a new condition"
    ]
    assert [row.message for row in inspect(clusters()) if row.check == "api-of-pods"] == [
        "is a new condition"
    ]
