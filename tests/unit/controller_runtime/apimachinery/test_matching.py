"""Selectors, affinity and taints: whether a node fits a pod."""

from __future__ import annotations

import pytest

from controller_runtime.apimachinery import matching
from tests.unit.clusterset.model.affinity import FIELD, requiring

LABELS = {"type": "virtual-kubelet", "zone": "z", "size": "7"}

_SELECTORS = [
    {},
    {"matchLabels": {"zone": "z"}},
    {"matchLabels": {"zone": "y", "size": "7"}},
    {"matchExpressions": [{"key": "size", "operator": "DoesNotExist"}]},
    {
        "matchLabels": {"size": "7"},
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["y", "z"]}],
    },
]


class TestMatching:
    """Selectors, affinity and taints."""

    @pytest.mark.parametrize(
        ("text", "matches"),
        [
            ("", True),
            ("type=virtual-kubelet", True),
            ("type==virtual-kubelet,zone=z", True),
            ("zone!=z", False),
            ("absent!=x", True),
            ("zone in (y, z),type", True),
            ("zone notin (z)", False),
            ("!absent", True),
            ("absent", False),
            ("size>6,size < 8", True),
            ("size>7", False),
            ("zone<6", False),
            ("absent>0", False),
        ],
    )
    def test_parse_selector(self, text, matches):
        """Kubectl's selectors."""
        assert matching.parse_selector(text)(LABELS) is matches

    @pytest.mark.parametrize("first", _SELECTORS)
    @pytest.mark.parametrize("second", _SELECTORS)
    def test_conjunction_matches_what_both_selectors_match(self, first, second):
        both = matching.compile_selector(matching.conjunction(first, second))
        each = [matching.compile_selector(selector) for selector in (first, second)]
        for labels in ({}, {"zone": "z"}, {"zone": "y"}, LABELS):
            assert both(labels) == all(matches(labels) for matches in each)

    @pytest.mark.parametrize("text", ["a b", "zone in z", "=x", "a=b=c", "a>b", "a<"])
    def test_bad_selector(self, text):
        """An invalid selector is an error."""
        with pytest.raises(ValueError, match="is not a label selector"):
            matching.parse_selector(text)

    @pytest.mark.parametrize(
        ("operator", "values", "result"),
        [
            ("Gt", ["6"], True),
            ("Gt", ["7"], False),
            ("Lt", ["8"], True),
            ("Lt", ["x"], False),
            ("Odd", [], False),
        ],
    )
    def test_numbers(self, operator, values, result):
        """Gt and Lt compare whole numbers; an operator that does not exist matches nothing."""
        assert matching.holds({"key": "size", "operator": operator, "values": values}, LABELS) is result

    @pytest.mark.parametrize(
        ("tolerations", "admitted"),
        [
            ([], False),
            ([{"operator": "Exists"}], True),
            ([{"key": "k", "operator": "Exists"}], True),
            ([{"key": "k", "value": "v"}], True),
            ([{"key": "k", "value": "other"}], False),
            ([{"key": "k", "operator": "Exists", "effect": "NoExecute"}], False),
        ],
    )
    def test_taints(self, tolerations, admitted):
        """A taint is tolerated by key, value and effect."""
        taints = [
            {"key": "k", "value": "v", "effect": "NoSchedule"},
            {"key": "p", "effect": "PreferNoSchedule"},
        ]
        spec = {"tolerations": tolerations}
        assert matching.admits(spec, name="a", labels={}, taints=taints) is admitted

    @pytest.mark.parametrize(
        ("operator", "bound", "value", "tolerated"),
        [
            ("Gt", "900", "950", True),
            ("Gt", "900", "900", False),
            ("Gt", "900", "0950", False),
            ("Gt", "900", "high", False),
            ("Lt", "5", "-1", True),
            ("Lt", "5", "5", False),
            ("Lt", "5", "", False),
            ("Gt", "900", "9" * 30, False),
            ("Ge", "900", "900", False),
        ],
    )
    def test_tolerations_compare_numbers(self, operator, bound, value, tolerated):
        """KEP-5471, Kubernetes 1.35: the taint's value is compared with the toleration's."""
        toleration = {"key": "k", "operator": operator, "value": bound}
        assert (
            matching.tolerates(toleration, {"key": "k", "value": value, "effect": "NoSchedule"}) is tolerated
        )

    def test_labels_are_numbers_as_in_go(self):
        """Python reads more texts as numbers, such as 1_000, which a label may have."""
        over = {"key": "size", "operator": "Gt", "values": ["6"]}
        found = [matching.holds(over, {"size": text}) for text in ("1_000", "007", "7.5", "٧", str(2**63))]
        assert found == [False, True, False, False, False]

    def test_terms_are_ored(self):
        """One term that matches is enough; an empty one matches nothing."""
        no = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["y"]}]}
        assert matching.admits(requiring(no, {"matchFields": [FIELD]}), name="a", labels=LABELS, taints=[])
        assert not matching.admits(requiring(no, {}), name="b", labels=LABELS, taints=[])
