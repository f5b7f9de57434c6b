"""Strategies are plug-ins, and their parameters are checked."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from controller_runtime.errors import ConfigError
from descheduler.config import policy
from descheduler.strategies import registry
from descheduler.strategies.base import Strategy
from descheduler.strategies.pod_life_time import PodLifeTime
from tests.unit.descheduler.bodies import cached, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process


class TestRegistry:
    """Strategies are plug-ins."""

    def test_entry_points(self, monkeypatch):
        """A strategy of another package is found by its entry point."""

        class Theirs(Strategy):
            name = "Theirs"

            async def run(self) -> None:
                pass

        class Entry:
            name, value = "theirs", "pkg:Theirs"

            def load(self) -> Any:
                return Theirs

        monkeypatch.setattr(
            metadata, "entry_points", lambda group: [Entry()] if group == registry.GROUP else []
        )
        found = registry.strategies()
        assert found["Theirs"] is Theirs
        assert registry.known_names(found)["Theirs"] == "Theirs"

    @pytest.mark.parametrize("loaded", [ImportError("no such module"), object])
    def test_broken_entry_point(self, monkeypatch, loaded):
        """One that cannot be loaded, or is no strategy, is named."""

        class Entry:
            name, value = "theirs", "pkg:Theirs"

            def load(self) -> Any:
                if isinstance(loaded, Exception):
                    raise loaded
                return loaded

        monkeypatch.setattr(metadata, "entry_points", lambda **_: [Entry()])
        with pytest.raises(ConfigError, match=r"strategy theirs \(pkg:Theirs\)"):
            registry.strategies()


def life_time(**params: Any) -> PodLifeTime:
    """A PodLifeTime strategy."""
    converted = policy.convert({"maxPodLifeTimeSeconds": 1, **params}, PodLifeTime.params_type, where="x")
    strategy: PodLifeTime = Process(Cluster()).add(PodLifeTime, converted)
    return strategy


class TestParams:
    """What all strategies' parameters have, and PodLifeTime's own."""

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
    async def test_concerns(self, params, concerned):
        """Namespaces, labels and priorities select pods."""
        whole = pod(labels={"app": "x"}, spec={"priority": 5})
        assert life_time(**params).concerns(cached(whole)) is concerned

    @pytest.mark.looptime
    @pytest.mark.parametrize(
        ("params", "said"),
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
    async def test_errors(self, params, said):
        """What makes no sense here names its field."""
        with pytest.raises(ConfigError, match=said):
            life_time(**params)

    @pytest.mark.parametrize(
        ("name", "field", "value"),
        [
            ("Unschedulable", "thresholdSeconds", 0),
            ("PodLifeTime", "maxPodLifeTimeSeconds", -1),
            ("StaleCluster", "staleAfterSeconds", 0),
            ("StaleCluster", "healAfterSeconds", -1),
            ("StaleCluster", "podsPerSecond", 0),
            ("StaleCluster", "burst", 0),
            ("StaleCluster", "disruptionBudgetTimeoutSeconds", -1),
            ("LowNodeUtilization", "numberOfNodes", -1),
        ],
    )
    def test_numbers_that_would_mean_something_else(self, name, field, value):
        """No pods per second would be no limit, no threshold would move what has only just been bound."""
        kind = registry.strategies()[name].params_type
        with pytest.raises(ConfigError, match=f"^x.{field}: .*>"):
            policy.convert(
                {"maxPodLifeTimeSeconds": 1, field: value} if name == "PodLifeTime" else {field: value},
                kind,
                where="x",
            )
