"""The division of pods: shares, maximum skew, the order of deletion, and hostile annotations."""

from __future__ import annotations

import contextlib
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import division, names

WEIGHTS = st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 1000), min_size=1)


def _divide(weights: dict[str, int], pods: int, max_skew: int | None = None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _ in range(pods):
        chosen = division.choose(weights, counts, weights, max_skew)
        assert chosen is not None
        counts[chosen] += 1
    return counts


@given(weights=WEIGHTS, pods=st.integers(0, 80), max_skew=st.none() | st.integers(1, 3))
def test_no_cluster_gets_a_pod_above_its_share(weights, pods, max_skew) -> None:
    """If all clusters have room, each has less than one pod above its share, whatever the order of the weights."""
    counts = _divide(weights, pods, max_skew)
    total = sum(weights.values())
    assert all(counts[one] - Fraction(pods * weight, total) < 1 for one, weight in weights.items())
    assert counts == _divide(dict(reversed(weights.items())), pods)


@given(weights=WEIGHTS, times=st.integers(0, 3))
def test_whole_shares_are_met_exactly(weights, times) -> None:
    """Shares are whole numbers if the number of pods is a multiple of the sum of the weights."""
    small = {one: 1 + weight % 9 for one, weight in weights.items()}
    assert _divide(small, times * sum(small.values())) == Counter(
        {one: times * w for one, w in small.items()}
    )


@given(
    weights=WEIGHTS,
    counts=st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 30)),
    closed=st.sets(st.sampled_from("abcdefg")),
    max_skew=st.integers(1, 4),
)
def test_maximum_skew_holds_for_any_counts_and_full_clusters(weights, counts, closed, max_skew) -> None:
    """The chosen cluster stays within the maximum skew. If all clusters have room, one is always chosen."""
    chosen = division.choose(weights, counts, weights.keys() - closed, max_skew)
    pods = 1 + sum(counts.get(one, 0) for one in weights)
    if chosen is not None:
        share = Fraction(pods * weights[chosen], sum(weights.values()))
        assert chosen not in closed
        assert counts.get(chosen, 0) + 1 - share <= max_skew
    elif not closed:
        pytest.fail("no cluster was chosen")


@given(
    weights=WEIGHTS,
    pods=st.integers(0, 40),
    extra=st.dictionaries(st.sampled_from("abcz"), st.integers(0, 9)),
)
def test_deletion_keeps_the_division(weights, pods, extra) -> None:
    """Each prefix of the order is what placement does; pods beyond it are last, those without a share at the very end."""
    counts = _divide(weights, pods)
    order = division.kept(weights, counts)
    for left in range(pods + 1):
        assert Counter(order[:left]) == _divide(weights, left)
    more = Counter(counts) + Counter(extra)
    order = division.kept(weights, more)
    assert Counter(order) == more
    without = [one not in weights for one in order]
    assert without == sorted(without)


def test_proportions_stay_when_few_pods_change() -> None:
    """So that pods of large workloads are not annotated again and again."""
    assert division.proportions({"a": 300, "b": 100, "c": 0}) == {"a": 8, "b": 3}
    assert division.proportions({"a": 303, "b": 99}) == {"a": 8, "b": 3}
    assert division.proportions({}) == {}


@pytest.mark.parametrize(
    ("text", "skew", "found"),
    [
        ("lower1=3,lower2=1", None, division.Division("weight", {"lower1": 3, "lower2": 1})),
        (" a=1 , b.c-d=1000000", "5", division.Division("weight", {"a": 1, "b.c-d": 1000000}, 5)),
        ("room", None, division.Division("room", {})),
        ("price", "1000", division.Division("price", {}, 1000)),
        ("", "x", None),
        (None, None, None),
    ],
)
def test_reads_annotations(text, skew, found) -> None:
    """An empty annotation declares no division."""
    values = {names.ANNOTATION_DIVISION: text, names.ANNOTATION_DIVISION_MAX_SKEW: skew}
    assert division.parse({key: value for key, value in values.items() if value is not None}) == found


HOSTILE = [
    "a", "a=", "=1", "a=0", "a=-1", "a=+1", "a=1.5", "a=1e300", "a=" + "9" * 10_000, "a=1,,b=1", "a=1,a=2", "a b=1",
    "a=1;b=2", "a=१", "x" * 300_000, "x" * 254 + "=1", ",".join(f"c{n}=1" for n in range(101)), "a=1000001", "a\n=1", "\0=1",
    "Room", "a=nan", "../a=1",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_invalid_division_names_the_annotation(text) -> None:
    """The message stays short for any annotation."""
    with pytest.raises(ValueError, match=f"^annotation {names.ANNOTATION_DIVISION}: ") as caught:
        division.parse({names.ANNOTATION_DIVISION: text})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.0", "1e9", "1001", "9" * 10_000, "१", "1 ", "x" * 300_000]
)
def test_invalid_skew_names_the_annotation(text) -> None:
    """Also if the division itself is valid."""
    with pytest.raises(ValueError, match=f"^annotation {names.ANNOTATION_DIVISION_MAX_SKEW}: "):
        division.parse({names.ANNOTATION_DIVISION: "a=1", names.ANNOTATION_DIVISION_MAX_SKEW: text})


_TEXT = "ab=,1039.-+e \n\0é१"


@given(text=st.text(_TEXT, max_size=50), skew=st.text(_TEXT, max_size=10))
def test_any_text_is_read_or_refused(text, skew) -> None:
    """No text causes another error than ValueError."""
    with contextlib.suppress(ValueError):
        division.parse({names.ANNOTATION_DIVISION: text, names.ANNOTATION_DIVISION_MAX_SKEW: skew})
