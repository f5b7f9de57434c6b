"""Policy files of both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller_runtime.errors import ConfigError
from descheduler import config as policy
from descheduler.config import StrategyConfig
from descheduler.moving.mover import PassLimits
from descheduler.strategies import registry
from tests.unit.descheduler.policies import KNOWN, TENSILE, V1ALPHA2, parse, v1


def v2(profile: Any = None, **fields: Any) -> dict[str, Any]:
    """Return a v1alpha2 document."""
    profiles = [] if profile is None else [profile]
    return {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy", "profiles": profiles, **fields}


class TestPolicy:
    """DeschedulerPolicy files."""

    def test_accepts_policy_of_tensile_kube(self):
        found = parse(TENSILE)
        where = 'strategies["PodLifeTime"].params'
        assert found.strategies == (StrategyConfig("PodLifeTime", {"maxPodLifeTimeSeconds": 180}, where),)

    def test_v1alpha1_unwraps_nested_parameters_and_skips_disabled_strategies(self):
        strategies = {
            "PodLifeTime": {
                "enabled": True,
                "params": {
                    "podLifeTime": {"maxPodLifeTimeSeconds": 9, "podStatusPhases": ["Pending"]},
                    "thresholdPriority": 10,
                    "namespaces": {"include": ["a"]},
                },
            },
            "RemovePodsViolatingNodeTaints": {"enabled": False},
        }
        found = policy.parse(v1(strategies=strategies, evictLocalStoragePods=True), known=KNOWN)
        (strategy,) = found.strategies
        assert strategy.params == {
            "maxPodLifeTimeSeconds": 9,
            "podStatusPhases": ["Pending"],
            "priorityThreshold": {"value": 10},
            "namespaces": {"include": ["a"]},
        }
        assert found.eviction["local_storage"] is True

    def test_v1alpha2_reads_profiles_evictor_and_limits(self):
        found = parse(V1ALPHA2)
        assert [strategy.name for strategy in found.strategies] == [
            "PodLifeTime",
            "StaleCluster",
            "LowNodeUtilization",
            "RemoveDuplicates",
        ]
        assert found.strategies[1].params == {"staleAfterSeconds": 40}
        assert found.strategies[2].params == {"thresholds": {"cpu": 10}, "targetThresholds": {"cpu": 50}}
        assert [found.eviction[name] for name in ("max_per_node", "max_per_namespace", "max_total")] == [
            5,
            6,
            7,
        ]
        assert (found.node_selector, found.eviction["local_storage"], found.eviction["ignore_pvc"]) == (
            "zone=z",
            True,
            True,
        )

    @pytest.mark.parametrize("version", [v1, v2])
    def test_a_maximum_of_zero_allows_no_move(self, version):
        """As in sigs.k8s.io/descheduler, where only a missing maximum is no limit."""
        for name in ("maxNoOfPodsToEvictPerNode", "maxNoOfPodsToEvictPerNamespace"):
            found = policy.parse(version(**{name: 0}), known=KNOWN)
            limits = PassLimits(msgspec.structs.replace(policy.EvictionOptions(), **found.eviction))
            assert limits.take("a", "x", now=0) > 0, name

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            (None, "the policy is empty"),
            ({"kind": "Pod"}, "kind: 'Pod': write DeschedulerPolicy"),
            (
                {"kind": "DeschedulerPolicy", "apiVersion": "v3"},
                "apiVersion: 'v3': write descheduler/v1alpha1 or",
            ),
            (v1(strategy={}), "unknown field `strategy`, did you mean strategies?"),
            (v1(strategies=[1]), "strategies: Expected `object | null`, got `array`"),
            (
                v1(strategies={"X": {"enabled": True}}),
                "strategies[\"X\"]: there is no strategy 'X'; known are",
            ),
            (
                v1(strategies={"X": {"enabled": "yes"}}),
                'strategies["X"].enabled: Expected `bool`, got `str`',
            ),
            (
                v1(strategies={"RemovePodsHavingTooManyRestarts": {"enabled": True}}),
                "run sigs.k8s.io/descheduler too",
            ),
            (v1(maxNoOfPodsToEvictPerNode=-1), "maxNoOfPodsToEvictPerNode: Expected `int` >= 0"),
            (v1(nodeSelector={"a": "b"}), "nodeSelector: Expected `str | null`, got `object`"),
            (v2(profiles={}), "profiles: Expected `array`, got `object`"),
            (v2({"plugin": {}}), "profiles[0]: unknown field `plugin`"),
            (
                v2({"pluginConfig": [{"args": {}}]}),
                "profiles[0].pluginConfig[0]: Object missing required field `name`",
            ),
            (
                v2({"plugins": {"deschedule": {"enabled": "X"}}}),
                "profiles[0].plugins.deschedule.enabled: Expected `array | null`, got `str`",
            ),
            (
                v2({"plugins": {"balance": {"enabled": ["X"]}}}),
                "profiles[0].plugins.balance.enabled[0]: there is no",
            ),
            (
                v2({"pluginConfig": [{"name": "DefaultEvictor", "args": {"minReplicas": 2}}]}),
                "profiles[0].pluginConfig[0].args: unknown field `minReplicas`",
            ),
            (
                v2(
                    {
                        "pluginConfig": [
                            {"name": "DefaultEvictor", "args": {"priorityThreshold": {"value": "a"}}}
                        ]
                    }
                ),
                "profiles[0].pluginConfig[0].args.priorityThreshold.value: Expected `int | null`, got `str`",
            ),
        ],
    )
    def test_errors_name_the_field(self, document, message):
        with pytest.raises(ConfigError) as raised:
            policy.parse(document, known=KNOWN)
        assert message in str(raised.value)

    @pytest.mark.parametrize(
        ("protections", "options"),
        [
            ({}, {}),
            ({"defaultDisabled": ["PodsWithLocalStorage", "FailedBarePods"]}, {"local_storage": True}),
            (
                {"defaultDisabled": ["SystemCriticalPods"], "extraEnabled": ["PodsWithPVC"]},
                {"system_critical": True, "ignore_pvc": True},
            ),
        ],
    )
    def test_pod_protections_replace_fields_of_the_evictor(self, protections, options):
        args = {"podProtections": protections}
        found = policy.parse(v2({"pluginConfig": [{"name": "DefaultEvictor", "args": args}]}), known=KNOWN)
        assert found.eviction == options

    @pytest.mark.parametrize(
        ("field", "name"), [("defaultDisabled", "DaemonSetPods"), ("extraEnabled", "PodsWithoutPDB")]
    )
    def test_a_protection_that_is_not_supported_is_refused(self, field, name):
        """Otherwise pods would be moved, or stay, against the policy."""
        args = {"podProtections": {field: [name]}}
        with pytest.raises(ConfigError) as error:
            policy.parse(v2({"pluginConfig": [{"name": "DefaultEvictor", "args": args}]}), known=KNOWN)
        assert f"podProtections.{field}[0]: '{name}' is not supported; known are Pods" in str(error.value)

    @pytest.mark.parametrize(
        ("own", "evictor", "params"),
        [
            ({}, {}, {}),
            ({}, {"priorityThreshold": {"value": 7}}, {"priorityThreshold": {"value": 7, "name": ""}}),
            (
                {"priorityThreshold": {"value": 9}},
                {"priorityThreshold": {"name": "system-node-critical"}},
                {"priorityThreshold": {"value": 9}},
            ),
            (
                {},
                {"labelSelector": {"matchLabels": {"a": "b"}}},
                {"labelSelector": {"matchLabels": {"a": "b"}}},
            ),
            (
                {"labelSelector": {"matchExpressions": [{"key": "c", "operator": "Exists"}]}},
                {"labelSelector": {"matchLabels": {"a": "b"}}},
                {
                    "labelSelector": {
                        "matchExpressions": [
                            {"key": "a", "operator": "In", "values": ["b"]},
                            {"key": "c", "operator": "Exists"},
                        ]
                    }
                },
            ),
        ],
    )
    def test_the_evictor_selects_the_pods_of_all_strategies_of_its_profile(self, own, evictor, params):
        """As sigs.k8s.io/descheduler's v1alpha2, which has no such parameters of strategies."""
        config = [{"name": "Unschedulable", "args": own}, {"name": "DefaultEvictor", "args": evictor}]
        plugins = {"deschedule": {"enabled": ["Unschedulable", "StaleCluster"]}}
        found = policy.parse(v2({"pluginConfig": config, "plugins": plugins}), known=KNOWN)
        assert found.strategies[0].params == params
        assert found.strategies[1].params.keys() == evictor.keys()
        for strategy in found.strategies:
            policy.convert(
                strategy.params, registry.strategies()[strategy.name].params_type, where=strategy.where
            )

    @pytest.mark.parametrize(
        "wrong", ["a=b", ["a"], {"matchLabels": "a"}, {"matchLabels": ["a"]}, {"a": "b"}]
    )
    def test_a_wrong_selector_is_an_error_with_its_path_also_beside_another_selector(self, wrong):
        selectors = [{"matchLabels": {"a": "b"}}, wrong]
        plugins = {"deschedule": {"enabled": ["Unschedulable"]}}
        for number, names in enumerate(
            (["Unschedulable", "DefaultEvictor"], ["DefaultEvictor", "Unschedulable"])
        ):
            config = [
                {"name": name, "args": {"labelSelector": selector}}
                for name, selector in zip(names, selectors, strict=True)
            ]
            with pytest.raises(ConfigError) as error:
                policy.parse(v2({"pluginConfig": config, "plugins": plugins}), known=KNOWN)
            assert "profiles[0].pluginConfig[1].args.labelSelector" in str(error.value), number

    def test_parameter_errors_name_the_path(self):
        kind = registry.strategies()["StaleCluster"].params_type
        with pytest.raises(ConfigError, match=r"^x\.staleAfterSeconds: Expected `float`, got `str`$"):
            policy.convert({"staleAfterSeconds": "20s"}, kind, where="x")
        with pytest.raises(ConfigError, match=r"^x: unknown field `stale`$"):
            policy.convert({"stale": 1}, kind, where="x")

    @pytest.mark.parametrize("text", ["{", "a: [", None])
    def test_unreadable_file_is_an_error_of_one_line(self, tmp_path, text):
        file = tmp_path / "policy.yaml"
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigError, match=r"policy\.yaml") as raised:
            policy.load(str(file), known=KNOWN)
        assert "\n" not in str(raised.value)

    def test_policies_in_documentation_are_valid(self):
        text = (Path(__file__).parents[3] / "docs/operate/descheduling.md").read_text(encoding="utf-8")
        blocks = [block for block in text.split("```yaml\n")[1:] if "DeschedulerPolicy" in block]
        assert blocks
        for block in blocks:
            found = parse(block.partition("```")[0])
            kinds = registry.strategies()
            for strategy in found.strategies:
                policy.convert(strategy.params, kinds[strategy.name].params_type, where=strategy.where)
