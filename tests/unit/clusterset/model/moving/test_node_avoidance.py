"""Required affinity that keeps pods off nodes, and the record that webhook and descheduler share."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

import pytest

from clusterset.model.moving import node_avoidance
from tests.unit.clusterset.model.affinity import FIELD, ZONE, excluded, requiring

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(seconds=100)


class TestAvoidance:
    """Required affinity that keeps pods off nodes, and the record that the webhook reads."""

    def test_every_term(self):
        """Each of the ORed terms gets the exclusion, those with fields only, too; a term that matches nothing does not."""
        spec = requiring({"matchExpressions": [ZONE]}, {"matchFields": [FIELD]}, {})
        before = copy.deepcopy(spec)
        assert excluded(node_avoidance.avoid(spec, {"b", "a"})) == [["a", "b"], ["a", "b"]]
        assert spec == before

    def test_nothing_to_avoid(self):
        """Without nodes nothing changes."""
        assert node_avoidance.avoid({"x": 1}, set()) == {"x": 1}

    @pytest.mark.parametrize(
        "spec",
        [
            {"containers": []},
            requiring({"matchExpressions": [ZONE]}, {"matchFields": [FIELD]}),
            {"affinity": {"podAffinity": {}}},
        ],
    )
    def test_exclusion_can_be_removed_again(self, spec):
        assert node_avoidance.readmit(node_avoidance.avoid(spec, {"a"}), {"a"}) == spec

    def test_record_round_trip(self):
        """The exact format of the contract with the webhook; entries of other programs are ignored."""
        text = node_avoidance.render("ns", {"vn-b": LATER, "vn-a": START})
        assert text == (
            '{"namespace":"ns","nodes":{"vn-a":"2026-01-01T00:00:00Z","vn-b":"2026-01-01T00:01:40Z"}}'
        )
        found = node_avoidance.parse_all({"o": text, "x": "{", "y": "[]", "z": '{"nodes": {"a": 1}}'})
        assert found == {"o": ("ns", {"vn-b": LATER, "vn-a": START})}

    def test_freeze_ends_after_its_period(self):
        """To the second."""
        frozen = {"old": START, "new": LATER}
        now = START + timedelta(seconds=300)
        assert node_avoidance.active(frozen, now=now, freeze_period=300) == {"new": LATER}

    @pytest.mark.parametrize(
        ("frozen", "candidates", "avoided"),
        [
            ("a", "abc", ["a"]),
            ("ab", "ab", ["b"]),
            ("a", "a", []),
            ("abx", "ab", ["b", "x"]),
            ("a", "", ["a"]),
        ],
    )
    def test_one_candidate_is_always_left(self, frozen, candidates, avoided):
        """Of the frozen candidates, the one frozen last is avoided."""
        moments = {node: START + timedelta(seconds=number) for number, node in enumerate(frozen)}
        assert node_avoidance.to_avoid(moments, candidates) == avoided
