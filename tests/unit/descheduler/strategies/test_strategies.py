"""Registration of strategies and validation of their parameters."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from controller_runtime.errors import ConfigError
from descheduler import config as policy
from descheduler.strategies import registry
from descheduler.strategies.base import Strategy
from descheduler.strategies.unschedulable import PodLifeTime
from tests.unit.descheduler.bodies import cached, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process


class TestRegistry:
    """Registered strategies."""

    def test_finds_strategy_of_another_package(self, monkeypatch):

        class External(Strategy):
            name = "External"

            async def run(self) -> None:
                pass

        class Entry:
            name, value = "external", "pkg:External"

            def load(self) -> Any:
                return External

        monkeypatch.setattr(
            metadata, "entry_points", lambda group: [Entry()] if group == registry.GROUP else []
        )
        found = registry.strategies()
        assert found["External"] is External
        assert registry.known_names(found)["External"] == "External"

    @pytest.mark.parametrize("loaded", [ImportError("no such module"), object])
    def test_error_names_entry_point_that_is_not_a_strategy(self, monkeypatch, loaded):

        class Entry:
            name, value = "external", "pkg:External"

            def load(self) -> Any:
                if isinstance(loaded, Exception):
                    raise loaded
                return loaded

        monkeypatch.setattr(metadata, "entry_points", lambda **_: [Entry()])
        with pytest.raises(ConfigError, match=r"strategy external \(pkg:External\)"):
            registry.strategies()


def life_time(**params: Any) -> PodLifeTime:
    """Return a PodLifeTime strategy."""
    converted = policy.convert({"maxPodLifeTimeSeconds": 1, **params}, PodLifeTime.params_type, where="x")
    strategy: PodLifeTime = Process(Cluster()).add(PodLifeTime, converted)
    return strategy


class TestParams:
    """Parameters of all strategies, and of PodLifeTime."""

    @pytest.mark.looptime
    @pytest.mark.parametrize(
        ("params", "concerned"),
        [
            ({}, True),
            ({"namespaces": {"include": ["default"]}}, True),
            ({"namespaces": {"include": ["other"]}}, False),
            ({"namespaces": {"exclude": ["default"]}}, False),
            ({"labelSelector": {"matchLabels": {"app": "x"}}}, True),
            ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}, False),
            ({"priorityThreshold": {"value": 5}}, False),
            ({"priorityThreshold": {"value": 6}}, True),
            ({"priorityThreshold": {"name": "system-cluster-critical"}}, True),
        ],
    )
    async def test_namespaces_labels_and_priority_select_pods(self, params, concerned):
        body = pod(labels={"app": "x"}, spec={"priority": 5})
        assert life_time(**params).concerns(cached(body)) is concerned

    @pytest.mark.looptime
    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"states": ["Running"]}, r"params\.states: Running: pods that have started"),
            ({"podStatusPhases": ["Pending", "Failed"]}, r"params\.podStatusPhases: Failed"),
            (
                {"labelSelector": {"matchExpressions": [{"operator": "Gt"}]}},
                r"params\.labelSelector: operator 'Gt'",
            ),
            ({"priorityThreshold": {"name": "mine"}}, r"params\.priorityThreshold\.name: 'mine'"),
        ],
    )
    async def test_parameter_errors_name_the_field(self, params, message):
        with pytest.raises(ConfigError, match=message):
            life_time(**params)

    @pytest.mark.parametrize(
        ("name", "field", "value"),
        [
            ("Unschedulable", "thresholdSeconds", 0),
            ("PodLifeTime", "maxPodLifeTimeSeconds", -1),
            ("StaleCluster", "staleAfterSeconds", 0),
            ("StaleCluster", "moveRunningAfterSeconds", 0),
            ("StaleCluster", "healAfterSeconds", -1),
            ("StaleCluster", "podsPerSecond", 0),
            ("StaleCluster", "burst", 0),
            ("StaleCluster", "disruptionBudgetTimeoutSeconds", -1),
            ("LowNodeUtilization", "numberOfNodes", -1),
        ],
    )
    def test_refuses_numbers_outside_their_range(self, name, field, value):
        """For example, 0 pods per second would be no limit."""
        kind = registry.strategies()[name].params_type
        with pytest.raises(ConfigError, match=f"^x.{field}: .*>"):
            policy.convert(
                {"maxPodLifeTimeSeconds": 1, field: value} if name == "PodLifeTime" else {field: value},
                kind,
                where="x",
            )
