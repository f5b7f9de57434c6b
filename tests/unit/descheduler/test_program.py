"""The command line, with and without a policy file."""

from __future__ import annotations

import json

import pytest

from controller_runtime.errors import ConfigError
from descheduler.program import PROGRAM
from tests.unit.descheduler.policies import TENSILE, V1ALPHA2, v1


class TestFlags:
    """The command line."""

    def test_defaults_run_unschedulable_and_stale_cluster_with_leader_election(self):
        options = PROGRAM.parse([])
        assert [strategy.name for strategy in options.strategies] == [
            "Unschedulable",
            "StaleCluster",
            "Drain",
        ]
        assert options.strategies[0].params.threshold_seconds == 180
        assert options.strategies[1].params.stale_after_seconds == 20
        assert options.strategies[1].params.move_running_after_seconds == 300
        assert options.election.enabled
        assert not options.eviction.dry_run
        assert (options.freeze_namespace, options.freeze_period) == ("kube-system", 300)

    def test_accepts_flags_of_tensile_kube(self, tmp_path):
        file = tmp_path / "policy.yaml"
        file.write_text(TENSILE)
        options = PROGRAM.parse(
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
        assert [strategy.name for strategy in options.strategies] == ["PodLifeTime", "Drain"]
        assert (options.interval, options.eviction.pass_seconds, options.klog.verbosity) == (10, 10, 4)
        assert options.eviction.dry_run
        assert options.eviction.local_storage
        assert options.eviction.max_per_node == 3

    def test_given_flag_overrides_policy(self, tmp_path):
        file = tmp_path / "policy.yaml"
        file.write_text(V1ALPHA2)
        path = f"--policy-config-file={file}"
        assert PROGRAM.parse([path]).eviction.max_per_node == 5
        assert PROGRAM.parse([path]).eviction.local_storage
        options = PROGRAM.parse([path, "--max-pods-to-evict-per-node=0", "--evict-local-storage-pods=false"])
        assert (options.eviction.max_per_node, options.eviction.local_storage) == (0, False)

    def test_warns_about_flags_without_effect_beside_policy(self, tmp_path):
        file = tmp_path / "policy.yaml"
        file.write_text(TENSILE)
        options = PROGRAM.parse(
            [f"--policy-config-file={file}", "--unschedulable-threshold=5s", "--backoff=5s"]
        )
        (warning,) = options.warnings
        assert warning.startswith("--unschedulable-threshold has no effect")

    def test_flag_disables_moves_off_lost_clusters(self):
        options = PROGRAM.parse(["--move-off-lost-clusters=false"])
        assert [strategy.name for strategy in options.strategies] == ["Unschedulable", "Drain"]

    @pytest.mark.parametrize(
        ("argument", "message"),
        [
            ("--move-running-after=0s", "--move-running-after: 0"),
            ("--node-selector=a b", "--node-selector: 'a b' is not a label selector"),
            (
                "--include-failures=image,disk",
                "--include-failures: 'disk': write one of image, quota, admission",
            ),
            ("--unschedulable-threshold=0", "--unschedulable-threshold: 0 must be more than 0"),
            ("--freeze-period=0", "--freeze-period: 0 must be more than 0"),
            ("--max-pods-to-evict-per-node=-1", "--max-pods-to-evict-per-node: -1"),
            ("--leader-elect-retry-period=1m", "--leader-elect-lease-duration must be more"),
            ("--policy-config-file=/nowhere", "--policy-config-file /nowhere"),
        ],
    )
    def test_invalid_flag_is_one_line_and_exit_code_2(self, argument, message, capsys):
        assert PROGRAM([argument]) == 2
        assert capsys.readouterr().err.startswith(f"virtual-node-descheduler: {message}")

    def test_validates_parameters_at_start(self, tmp_path):
        file = tmp_path / "policy.json"
        strategies = {"PodLifeTime": {"enabled": True, "params": {"maxPodLifeTimeSeconds": "x"}}}
        file.write_text(json.dumps(v1(strategies=strategies)))
        message = r'strategies\["PodLifeTime"\]\.params\.maxPodLifeTimeSeconds: Expected'
        with pytest.raises(ConfigError, match=message):
            PROGRAM.parse([f"--policy-config-file={file}"])

    @pytest.mark.parametrize("argument", ["version", "--version"])
    def test_prints_version(self, argument, capsys):
        assert PROGRAM([argument]) == 0
        assert capsys.readouterr().out.strip()
