"""Policy files of both versions, and the command line."""

from __future__ import annotations

import contextlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller_runtime.errors import ConfigError
from descheduler import cli, flags, policy
from descheduler.policy import Policy, StrategyConfig
from descheduler.strategies import registry
from descheduler.strategies.base import Strategy
from descheduler.strategies.pod_life_time import PodLifeTime
from tests.unit.descheduler.fake import FakeCluster, cached, pod
from tests.unit.descheduler.process import Process

KNOWN = registry.known_names(registry.strategies())

TENSILE = """
apiVersion: "descheduler/v1alpha1"
kind: "DeschedulerPolicy"
strategies:
  "PodLifeTime":
     enabled: true
     params:
        maxPodLifeTimeSeconds: 180
"""

V1ALPHA2 = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
nodeSelector: zone=z
maxNoOfPodsToEvictPerNode: 5
maxNoOfPodsToEvictPerNamespace: 6
maxNoOfPodsToEvictTotal: 7
profiles:
- name: one
  pluginConfig:
  - name: DefaultEvictor
    args: {evictLocalStoragePods: true, ignorePvcPods: true, nodeFit: true}
  - name: PodLifeTime
    args: {maxPodLifeTimeSeconds: 60, states: [Pending, ImagePullBackOff], namespaces: {exclude: [x]}}
  - name: StaleCluster
    args: {staleAfterSeconds: 40}
  - name: LowNodeUtilization
    args: {apiVersion: a/b, kind: Args, thresholds: {cpu: 10}, targetThresholds: {cpu: 50}}
  plugins:
    deschedule: {enabled: [PodLifeTime, StaleCluster]}
    balance: {enabled: [LowNodeUtilization, Duplicates]}
    filter: {enabled: [DefaultEvictor]}
"""


def parse(text: str) -> Policy:
    """A policy of YAML."""
    return policy.parse(yaml.safe_load(text), known=KNOWN)


def v1(**fields: Any) -> dict[str, Any]:
    """A v1alpha1 document."""
    return {"apiVersion": "descheduler/v1alpha1", "kind": "DeschedulerPolicy", **fields}


def v2(profile: Any = None, **fields: Any) -> dict[str, Any]:
    """A v1alpha2 document."""
    profiles = [] if profile is None else [profile]
    return {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy", "profiles": profiles, **fields}


class TestPolicy:
    """DeschedulerPolicy."""

    def test_tensile_kube(self):
        """tensile-kube's own policy file works as it is."""
        found = parse(TENSILE)
        where = 'strategies["PodLifeTime"].params'
        assert found.strategies == (StrategyConfig("PodLifeTime", {"maxPodLifeTimeSeconds": 180}, where),)

    def test_v1alpha1_nested(self):
        """The later v1alpha1 wraps parameters, and has more of them; what is disabled does not count."""
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
        assert found.local_storage is True

    def test_v1alpha2(self):
        """Profiles, plugin arguments, the evictor and the limits."""
        found = parse(V1ALPHA2)
        assert [strategy.name for strategy in found.strategies] == [
            "PodLifeTime",
            "StaleCluster",
            "LowNodeUtilization",
            "RemoveDuplicates",
        ]
        assert found.strategies[1].params == {"staleAfterSeconds": 40}
        assert found.strategies[2].params == {"thresholds": {"cpu": 10}, "targetThresholds": {"cpu": 50}}
        assert (found.max_per_node, found.max_per_namespace, found.max_total) == (5, 6, 7)
        assert (found.node_selector, found.local_storage, found.ignore_pvc) == ("zone=z", True, True)

    @pytest.mark.parametrize(
        ("document", "said"),
        [
            (None, "the policy is empty"),
            ({"kind": "Pod"}, "kind: 'Pod': write DeschedulerPolicy"),
            (
                {"kind": "DeschedulerPolicy", "apiVersion": "v3"},
                "apiVersion: 'v3': write descheduler/v1alpha1 or",
            ),
            (v1(strategy={}), "strategy: unknown field; known are"),
            (v1(strategies=[1]), "strategies: write a mapping"),
            (
                v1(strategies={"X": {"enabled": True}}),
                "strategies[\"X\"]: there is no strategy 'X'; known are",
            ),
            (
                v1(strategies={"X": {"enabled": "yes"}}),
                "strategies[\"X\"].enabled: 'yes': write true or false",
            ),
            (
                v1(strategies={"RemovePodsHavingTooManyRestarts": {"enabled": True}}),
                "run sigs.k8s.io/descheduler beside this one",
            ),
            (v1(maxNoOfPodsToEvictPerNode=-1), "maxNoOfPodsToEvictPerNode: -1: write a number of pods"),
            (v1(nodeSelector={"a": "b"}), "nodeSelector: write a label selector as text"),
            (v2(profiles={}), "profiles: write a list"),
            (v2({"plugin": {}}), "profiles[0].plugin: unknown field"),
            (v2({"pluginConfig": [{"args": {}}]}), "profiles[0].pluginConfig[0].name: write"),
            (
                v2({"plugins": {"deschedule": {"enabled": "X"}}}),
                "profiles[0].plugins.deschedule.enabled: write a list",
            ),
            (
                v2({"plugins": {"balance": {"enabled": ["X"]}}}),
                "profiles[0].plugins.balance.enabled[0]: there is no",
            ),
            (
                v2({"pluginConfig": [{"name": "DefaultEvictor", "args": {"minReplicas": 2}}]}),
                "profiles[0].pluginConfig[0].args.minReplicas: unknown field",
            ),
        ],
    )
    def test_errors(self, document, said):
        """What cannot be honoured names its field."""
        with pytest.raises(ConfigError) as raised:
            policy.parse(document, known=KNOWN)
        assert said in str(raised.value)

    def test_parameters(self):
        """A wrong parameter is named with its path."""
        kind = registry.strategies()["StaleCluster"].params_type
        with pytest.raises(ConfigError, match=r"^x\.staleAfterSeconds: Expected `float`, got `str`$"):
            policy.convert({"staleAfterSeconds": "20s"}, kind, where="x")
        with pytest.raises(ConfigError, match=r"^x: Object contains unknown field `stale`$"):
            policy.convert({"stale": 1}, kind, where="x")

    @pytest.mark.parametrize("text", ["{", "a: [", None])
    def test_files(self, tmp_path, text):
        """A file that is not there or no YAML is one line."""
        file = tmp_path / "policy.yaml"
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigError, match=r"policy\.yaml") as raised:
            policy.load(str(file), known=KNOWN)
        assert "\n" not in str(raised.value)


class TestFlags:
    """The command line."""

    def test_defaults(self):
        """Without any flag: tensile-kube's threshold, kubeleet's rule, and leader election."""
        options = flags.parse([])
        assert [strategy.name for strategy in options.strategies] == ["Unschedulable", "StaleCluster"]
        assert options.strategies[0].params["thresholdSeconds"] == 180
        assert options.strategies[1].params["staleAfterSeconds"] == 20
        assert options.leader_elect
        assert not options.eviction.dry_run
        assert (options.freeze_namespace, options.freeze_period) == ("kube-system", 300)

    def test_tensile_kube(self, tmp_path):
        """tensile-kube's flags, as its manifest spells them."""
        file = tmp_path / "policy.yaml"
        file.write_text(TENSILE)
        options = flags.parse(
            [
                f"--policy-config-file={file}",
                "--descheduling-interval=10s",
                "--kubeconfig=/k",
                "--node-selector=type=virtual-kubelet",
                "--max-pods-to-evict-per-node=3",
                "--evict-local-storage-pods",
                "--dry-run",
                "--klog.v=4",
            ]
        )
        assert [strategy.name for strategy in options.strategies] == ["PodLifeTime"]
        assert (options.interval, options.eviction.pass_seconds, options.klog_verbosity) == (10, 10, 4)
        assert options.eviction.dry_run
        assert options.eviction.local_storage
        assert options.eviction.max_per_node == 3

    def test_flag_beats_policy(self, tmp_path):
        """A flag that is given wins over the file; one that is not leaves it alone."""
        file = tmp_path / "policy.yaml"
        file.write_text(V1ALPHA2)
        path = f"--policy-config-file={file}"
        assert flags.parse([path]).eviction.max_per_node == 5
        assert flags.parse([path]).eviction.local_storage
        options = flags.parse([path, "--max-pods-to-evict-per-node=0", "--evict-local-storage-pods=false"])
        assert (options.eviction.max_per_node, options.eviction.local_storage) == (0, False)

    def test_void_flags(self, tmp_path):
        """A flag that the policy file makes void is said to be, instead of being ignored in silence."""
        file = tmp_path / "policy.yaml"
        file.write_text(TENSILE)
        options = flags.parse(
            [f"--policy-config-file={file}", "--unschedulable-threshold=5s", "--backoff=5s"]
        )
        (warning,) = options.warnings
        assert warning.startswith("--unschedulable-threshold has no effect")

    def test_lost_clusters_can_be_left_alone(self):
        """Moving pods off lost clusters can be turned off."""
        options = flags.parse(["--move-off-lost-clusters=false"])
        assert [strategy.name for strategy in options.strategies] == ["Unschedulable"]

    @pytest.mark.parametrize(
        ("argument", "said"),
        [
            ("--node-selector=a b", "--node-selector: 'a b' is not a label selector"),
            (
                "--include-failures=image,disk",
                "--include-failures: 'disk': known are image, quota, admission",
            ),
            ("--unschedulable-threshold=0", "--unschedulable-threshold: 0 must be more than 0"),
            ("--freeze-period=0", "--freeze-period: 0 must be more than 0"),
            ("--max-pods-to-evict-per-node=-1", "--max-pods-to-evict-per-node: -1"),
            ("--leader-elect-retry-period=1m", "--leader-elect-lease-duration must be more"),
            ("--policy-config-file=/nowhere", "--policy-config-file /nowhere"),
        ],
    )
    def test_errors(self, argument, said, capsys):
        """A bad flag is one line on standard error, and exit code 2."""
        assert cli.main([argument]) == 2
        assert capsys.readouterr().err.startswith(f"virtual-node-descheduler: {said}")

    def test_bad_parameters_at_start(self, tmp_path):
        """Parameters are checked before anything is connected to."""
        file = tmp_path / "policy.json"
        strategies = {"PodLifeTime": {"enabled": True, "params": {"maxPodLifeTimeSeconds": "x"}}}
        file.write_text(json.dumps(v1(strategies=strategies)))
        said = r'strategies\["PodLifeTime"\]\.params\.maxPodLifeTimeSeconds: Expected'
        with pytest.raises(ConfigError, match=said):
            flags.parse([f"--policy-config-file={file}"])

    @pytest.mark.parametrize("argument", ["version", "--version"])
    def test_version(self, argument, capsys):
        """The version, as a subcommand and as a flag."""
        assert cli.main([argument]) == 0
        assert capsys.readouterr().out.strip()


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
    with contextlib.ExitStack():
        strategy: PodLifeTime = Process(FakeCluster()).add(PodLifeTime, converted)
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

    def test_docs_policy(self):
        """The policy in the documentation is one that works."""
        text = (Path(__file__).parents[3] / "docs" / "descheduling.md").read_text(encoding="utf-8")
        blocks = [block for block in text.split("```yaml\n")[1:] if "DeschedulerPolicy" in block]
        assert blocks
        for block in blocks:
            found = parse(block.partition("```")[0])
            kinds = registry.strategies()
            for strategy in found.strategies:
                policy.convert(strategy.params, kinds[strategy.name].params_type, where=strategy.where)
