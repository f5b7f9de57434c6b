"""The formulas against vectors of the original systems: integers exactly, floats to 1e-9."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.config import Thresholds
from multi_scheduler import numeric, usage
from multi_scheduler.agents import congestion, cost, load, pigeon, safe
from multi_scheduler.numeric import rounded
from multi_scheduler.usage import Pressure, Stall

_VECTORS = Path(__file__).parent / "vectors"
SAFE: dict[str, Any] = json.loads((_VECTORS / "safe_scheduler.json").read_text())
TRIMARAN: dict[str, Any] = json.loads((_VECTORS / "trimaran.json").read_text())
VARIATION, COMMITMENT, PACKING = (
    TRIMARAN[name] for name in ("LoadVariationRiskBalancing", "LowRiskOverCommitment", "TargetLoadPacking")
)
OBJECTIVES: dict[str, pigeon.Objective] = {
    "LOAD_BALANCE": "LoadBalance", "CONSOLIDATE": "Consolidate", "A_BINPACK": "AdaptiveBinPack",
}  # fmt: skip
near = pytest.approx


@pytest.mark.parametrize("row", SAFE["beta_risk"])
def test_safe_risk_and_scores(row) -> None:
    """Risk, decision and both integer scores equal kube-safe-scheduler's."""
    found = safe.overload_risk(row["mu"], row["sigma"], row["threshold"])
    assert found == near(row["risk"], rel=0, abs=1e-9)
    assert numeric.fit_beta(row["mu"], row["sigma"]) == near((row["alpha"], row["beta"]), abs=1e-8)
    assert (found <= row["epsilon"]) == row["accept"]
    assert safe.overload_points(found, row["epsilon"]) == row["overload_score"]
    assert safe.balance_points(row["mu"], row["sigma"]) == row["balance_score"]


@pytest.mark.parametrize("row", SAFE["beta_risk_degenerate"])
def test_safe_risk_without_a_distribution(row) -> None:
    """Moments without a beta distribution give a risk of 0 or 1."""
    assert safe.overload_risk(row["mu"], row["sigma"], row["threshold"]) == row["risk"]


@pytest.mark.parametrize(
    ("known", "demand", "expected"),
    [
        (
            {"free": 155597063 / 2**20, "deviation": 30372823 / 2**20, "capacity": 256},
            20,
            (0.498481, 0.113148),
        ),
        ({"free": 2500, "deviation": 400, "capacity": 4000}, 200, (0.425, 0.1)),
        ({"free": 2500, "deviation": 400, "capacity": 4000, "forecast": 2000}, 200, (0.45, 0.1)),
        ({"free": 600, "deviation": 400, "capacity": 4000}, 500, (0.975, 0.1)),
        ({"free": 600, "deviation": None, "capacity": 4000}, 100, (0.875, 0)),
        ({"free": math.nan, "capacity": 4000}, 100, None),
        ({"free": 600, "capacity": 0}, 0, None),
    ],
)
def test_safe_load_with_a_pod(known, demand, expected) -> None:
    """Annotated means, deviations and forecasts become shares of capacity; non-finite values are unknown."""
    given_values = {"deviation": None, "forecast": None, "weight": 0.2, **known}
    found = safe.load_with_pod(**given_values, demand=demand)
    assert (found and (found.mean, found.deviation)) == (expected and near(expected, abs=1e-6))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_safe_scores_stay_in_range(
    mean: float, deviation: float, threshold: float, percentile: float
) -> None:
    """For all settings."""
    found = safe.overload_risk(mean, deviation, threshold)
    assert 0 <= found <= 1
    assert 0 <= safe.overload_points(found, percentile) <= 10
    assert 0 <= safe.balance_points(mean, deviation) <= 10


@pytest.mark.parametrize("row", SAFE["congestion"])
def test_congestion(row) -> None:
    """Only positive integers count."""
    assert congestion.factor_points(row["factor"], row["max"]) == row["score"]


@pytest.mark.parametrize("case", SAFE["pigeon"], ids=lambda case: f"{case['name']}-{case['policy']}")
def test_pigeon_objectives_and_scores(case) -> None:
    """Objectives over all nodes, and scores among the candidates."""
    bins = {node["name"]: pigeon.Bin(node["capacity"], node["usage"]) for node in case["nodes"]}
    history = pigeon.DemandHistory(len(case["nodes"][0]["capacity"]))
    for call in case["calls"]:
        history.add(call["demand"])
        found = pigeon.objectives(
            bins,
            call["demand"],
            OBJECTIVES[case["policy"]],
            primary=case["prime_index"],
            history=history,
        )
        # The vectors come from a library in single precision, with six digits.
        tolerance = 3e-4 if case["policy"] == "A_BINPACK" else 1e-6
        for name, value in call["objective"].items():
            assert (found[name] is None) == (value is None)
            assert found[name] == (None if value is None else near(value, abs=tolerance))
        assert pigeon.points(found) == call["scores"]


def test_pigeon_window_turns_exponential_after_a_hundred_demands() -> None:
    """The demand after the hundredth has the same weight as the hundredth."""
    history = pigeon.DemandHistory(1)
    for _ in range(99):
        history.add([100])
    for demand, mean, second in zip(
        (100, 3000, 100),
        *(SAFE["pigeon_window"][key] for key in ("mean_after", "second_moment_after")),
        strict=True,
    ):
        history.add([demand])
        assert history.mean == [near(mean, rel=1e-9)]
        assert history.second == [[near(second, rel=1e-9)]]


@pytest.mark.parametrize("trace", SAFE["pigeon_traces"], ids=lambda trace: trace["policy"])
def test_pigeon_traces(trace) -> None:
    """Places pod after pod where the objective is best."""
    size = len(trace["capacity"])
    bins = {f"n{number}": pigeon.Bin(trace["capacity"], [0] * size) for number in range(trace["node_count"])}
    history = pigeon.DemandHistory(size)
    for demand, expected in zip(trace["demands"], trace["placements"], strict=True):
        history.add(demand)
        found = pigeon.objectives(bins, demand, OBJECTIVES[trace["policy"]], history=history)
        feasible = {name: round(value, 9) for name, value in found.items() if value is not None}
        best = min(feasible, key=lambda name: (feasible[name], name))
        assert best == expected
        usage = [a + b for a, b in zip(bins[best].usage, demand, strict=True)]
        bins[best] = pigeon.Bin(trace["capacity"], usage)


def test_pigeon_ignores_resources_that_no_node_has() -> None:
    """A GPU column of zeros does not turn packing into spreading."""
    bins = {
        name: pigeon.Bin([4000, 8192, 0], usage) for name, usage in (("a", [3000, 6144, 0]), ("b", [0, 0, 0]))
    }
    history = pigeon.DemandHistory(3)
    for demand in ([100, 128, 0], [3500, 7000, 0], [100, 128, 0]):
        history.add(demand)
    without = pigeon.DemandHistory(2)
    for demand in ([100, 128], [3500, 7000], [100, 128]):
        without.add(demand)
    bare = {name: pigeon.Bin(one.capacity[:2], one.usage[:2]) for name, one in bins.items()}
    assert pigeon.objectives(bins, [100, 128, 0], "AdaptiveBinPack", history=history) == near(
        pigeon.objectives(bare, [100, 128], "AdaptiveBinPack", history=without)
    )


@pytest.mark.parametrize("row", VARIATION["upstream_computeScore"] + VARIATION["derived_computeScore"])
def test_load_variation(row) -> None:
    """LoadVariationRiskBalancing; the plug-in replaces a negative margin by its default before."""
    margin = max(0.0, row["margin"])
    found = 100 * load.load_variation(
        row["capacity"],
        row["usedAvg"],
        row["usedStdev"],
        row["req"],
        margin=margin,
        sensitivity=row["sensitivity"],
    )
    assert rounded(found) == row["score"]
    assert found == near(row.get("raw", found), rel=0, abs=1e-9)


@pytest.mark.parametrize("row", VARIATION["upstream_GetMuSigma_capacity1000"])
def test_load_moments(row) -> None:
    """Usage above capacity and below zero is limited."""
    found = load.utilization_moments(row.get("capacity", 1000), row["usedAvg"], row["usedStdev"], row["req"])
    assert found == near((row["mu"], row["sigma"]))


@pytest.mark.parametrize("row", PACKING["derived"])
def test_target_load_packing(row) -> None:
    """Both slopes, and pods that are not part of the measurement."""
    given_values = row["in"]
    capacity = given_values["NodeCapMilli"]
    found = load.target_load_packing(
        capacity,
        given_values["UtilPct"] / 100 * capacity,
        given_values["PodMilli"] + given_values["MissingMilli"],
        given_values["Target"] / 100,
    )
    assert rounded(100 * found) == row["score"]


@pytest.mark.parametrize("row", PACKING["pod_prediction"])
def test_predicted_cpu_of_a_pod(row) -> None:
    """By limit, else by request, else by a constant."""
    found = load.predicted_milli(row.get("request_m", 0), row.get("limit_m", 0)) + row.get("overhead_m", 0)
    assert found == row["milli"]


def _risk(row) -> load.OverCommitment:
    given_values = row["in"]
    commitment = load.Commitment(
        *(given_values[name] for name in ("Request", "Limit", "RequestMinusPod", "LimitMinusPod", "Capacity"))
    )
    measured = (
        (given_values["UtilPct"] / 100, given_values["StdPct"] / 100) if given_values["HasMetric"] else None
    )
    return load.over_commitment(
        commitment, measured, samples=given_values["Window"], limits_weight=given_values["W"]
    )


@pytest.mark.parametrize("row", COMMITMENT["derived_computeRisk"])
def test_over_commitment(row) -> None:
    """Risk by limits and by load, and their weighted sum."""
    found = _risk(row)
    assert (found.by_limits, found.by_load, found.total) == near(
        (row["riskLimit"], row["riskLoad"], row["totalRisk"]), rel=0, abs=1e-9
    )
    assert rounded(100 * (1 - found.total)) == row["scoreIfOnlyResource"]


def test_over_commitment_of_upstream() -> None:
    """The rows of upstream's own test."""
    (rows,) = (rows for name, rows in COMMITMENT.items() if name.startswith("upstream_computeRisk"))
    sizes = {"cpu": (4000, 80), "memory": (4096, 25)}
    for row in rows:
        capacity, used = sizes[row["resource"]]
        known = {"Capacity": capacity, "UtilPct": used, "StdPct": 0, "HasMetric": True, "Window": 5, "W": 0.5}
        asked = {
            name[0].upper() + name[1:]: value
            for name, value in row.items()
            if name not in {"resource", "risk"}
        }
        assert _risk({"in": known | asked}).total == row["risk"]


@pytest.mark.parametrize("row", COMMITMENT["derived_beta"])
def test_beta_distribution(row) -> None:
    """Distribution function and moments."""
    parameters = row["alpha"], row["beta"]
    assert numeric.beta_distribution(row["x"], *parameters) == near(row["cdf"], rel=0, abs=1e-9)
    assert numeric.fit_beta(row["mean"], math.sqrt(row["variance"])) == near(parameters, rel=1e-6)


@pytest.mark.parametrize("row", COMMITMENT["derived_ComputeProbability"])
def test_probability_below_a_threshold(row) -> None:
    """With and without a fitted distribution."""
    found = load.probability(row["mu"], row["sigma"], row["threshold"])
    assert found == near(row["probability"], rel=0, abs=1e-9)


def test_beta_of_upstream() -> None:
    """Invalid parameters and moments included."""
    rows = COMMITMENT["upstream_beta_tolerance_1e-6"]
    for row in rows["cdf"]:
        assert numeric.beta_distribution(row["x"], row["alpha"], row["beta"]) == near(row["cdf"])
    for row in rows["MatchMoments"]:
        mean = row["m1"]
        fitted = numeric.fit_beta(mean, math.sqrt(row["m2"] - mean * mean))
        assert fitted == (near((row["alpha"], row["beta"])) if row["ok"] else None)
    for row in rows["GetMaxVariance"]:
        assert numeric.maximum_variance(row["m1"]) == row["v"]


@given(st.floats(0.01, 0.99), st.floats(1e-5, 0.4), st.floats(0, 1), st.floats(0, 1))
def test_beta_distribution_is_monotonic(mean: float, deviation: float, one: float, other: float) -> None:
    """For every fit, including narrow ones."""
    fitted = numeric.fit_beta(mean, deviation)
    if fitted is not None:
        low, high = sorted((one, other))
        assert numeric.beta_distribution(low, *fitted) <= numeric.beta_distribution(high, *fitted) + 1e-9


@pytest.mark.parametrize(
    ("pods", "cpu", "memory_some", "memory_full", "io", "points"),
    [(10, 0, 0, 0, 0, 10), (50, 40, 20, 4, 10, 7), (90, 90, 60, 8, 50, 3)],
)
def test_pressure_of_kubeleet(*, pods, cpu, memory_some, memory_full, io, points) -> None:
    """Load as integer points."""
    found = Pressure(Stall(some10=cpu), Stall(some10=memory_some, full10=memory_full), Stall(some10=io))
    assert rounded(10 * (1 - usage.pressure_load(pods / 100, found, utilization=0.9))) == points


def test_cpu_pressure_counts_on_busy_nodes_only() -> None:
    """CFS throttling raises CPU pressure on idle nodes."""
    throttled = Pressure(cpu=Stall(some10=90, some60=90))
    for utilization, counts in ((0.7, False), (0.71, True), (None, False)):
        assert usage.is_pressed(throttled, Thresholds(), utilization=utilization) == counts
        assert (usage.pressure_load(0, throttled, utilization=utilization) > 0) == counts


@pytest.mark.parametrize(
    ("short", "long", "was_pressed", "expected"),
    [
        (12, 9, False, False),  # only briefly
        (12, 10, False, True),
        (9, 12, False, False),  # already over
        (9, 12, True, True),  # until the longer average is below
        (50, 9.9, True, False),
    ],
)
def test_pressure_starts_and_ends_at_different_averages(short, long, was_pressed, expected) -> None:
    """Hysteresis of KEP-5394."""
    found = Pressure(memory=Stall(full10=short, full60=long))
    assert (
        usage.is_pressed(found, Thresholds(memory=10), utilization=None, was_pressed=was_pressed) == expected
    )


def test_cost_prefers_the_cheapest_of_the_first_rank() -> None:
    """Within a rank by price, between ranks by rank alone."""
    requests = {"cpu": 2000, "memory": 4 * 1024**3}
    price = cost.Price(cpu=0.04, memory=0.005)
    assert cost.hourly(requests, price) == near(0.1)
    assert cost.hourly(requests, price, discount=0.7) == near(0.03)
    assert cost.scores({"a": 0.1, "b": 0.2, "free": 0.0}) == near({"a": 0.01, "b": 0.01, "free": 1})
    ranked = cost.scores({"own": 9.0, "cloud": 0.1, "other": 0.2}, {"own": 0})
    assert ranked["own"] > ranked["cloud"] > ranked["other"] > 0
