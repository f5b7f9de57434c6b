"""tensile-kube's manifests start this project's programs with unchanged arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import descheduler.program
import multi_scheduler.program
import virtual_node.config.command_line
import webhook.program
from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import Klog
from controller_runtime.process.program import start
from multi_scheduler.print_configuration import PROGRAM as PRINT

_ENVIRONMENT = {
    "KUBELET_PORT": "10450",
    "APISERVER_CERT_LOCATION": "/etc/virtual-kubelet/cert/cert.pem",
    "APISERVER_KEY_LOCATION": "/etc/virtual-kubelet/cert/key.pem",
    "APISERVER_CA_CERT_LOCATION": "/etc/virtual-kubelet/cert/ca.pem",
    "DEFAULT_NODE_NAME": "virtual-kubelet",
    "VKUBELET_POD_IP": "10.0.0.7",
}
_OTHERS = "--logtostderr --alsologtostderr=false --stderrthreshold=2 --vmodule=x=1 --log_dir /l --log-file=/f --skip_headers"
_IGNORED = (
    "--logtostderr",
    "--alsologtostderr",
    "--stderrthreshold",
    "--vmodule",
    "--log_dir",
    "--log-file",
    "--skip_headers",
)


def test_virtual_node_accepts_the_manifests_arguments():
    """manifeasts/virtual-node.yaml, with its environment."""
    found = virtual_node.config.command_line.PROGRAM.parse(
        [
            "--provider=k8s",
            "--nodename=virtual-kubelet",
            "--disable-taint=true",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--client-qps=500",
            "--client-burst=1000",
            "--client-kubeconfig=/root/kube.config",
            "--klog.v=5",
            "--log-level=debug",
            "--metrics-addr=:10455",
        ],
        _ENVIRONMENT,
    )
    (cluster,) = found.config.clusters
    assert (cluster.kubeconfig, cluster.client_qps, cluster.client_burst) == ("/root/kube.config", 500, 1000)
    assert [(node.name, node.taints) for node in cluster.virtual_nodes()] == [("virtual-kubelet", [])]
    assert (found.config.kubelet.port, found.config.kubelet.node_ip) == (10450, "10.0.0.7")
    assert (found.config.metrics_address, found.log_level) == (":10455", "debug")
    assert (found.klog, found.warnings) == (Klog(5), ())


def test_webhook_accepts_the_manifests_arguments():
    """manifeasts/webhook.yaml."""
    found = webhook.program.PROGRAM.parse(
        ["--tlscert=/root/cert.pem", "--tlskey=/root/key.pem", "--port=443", "--v=6"], {}
    )
    assert (found.tlscert, found.tlskey, found.port) == ("/root/cert.pem", "/root/key.pem", 443)
    assert found.klog == Klog(6)


def test_descheduler_accepts_the_manifests_arguments(tmp_path: Path):
    """manifeasts/descheduler.yaml: each value is a separate argument, and PodLifeTime in the policy.

    Drain runs with every policy, because only an administrator's annotation on a Node starts it.
    """
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: descheduler/v1alpha1\nkind: DeschedulerPolicy\nstrategies:\n  PodLifeTime:\n"
        "    enabled: true\n    params: {maxPodLifeTimeSeconds: 180}\n",
        encoding="utf-8",
    )
    found = descheduler.program.PROGRAM.parse(
        ["--policy-config-file", str(policy), "--descheduling-interval", "10s", "--v", "3"]
    )
    assert (found.interval, [one.name for one in found.strategies]) == (10, ["PodLifeTime", "Drain"])
    assert found.klog == Klog(3)


def _scheduler(argv: Sequence[str], folder: Path) -> Any:
    config = folder / "config.json"
    config.write_text(
        '{"pluginConfig": [{"name": "multi-scheduler", "args": {"cluster_configuration": {"a": {"kube_config": "/k"}}}}]}',
        encoding="utf-8",
    )
    return multi_scheduler.program.PROGRAM.parse([f"--config={config}", *argv], {})


_README = (
    "--port=8888 --bind-address=127.0.0.1 --leader-elect=false --authentication-kubeconfig /root/kube.config "
    "--authorization-kubeconfig=/root/kube.config --lock_object_name=x --profiling --v=6"
)
_README_IGNORED = (
    "--bind-address", "--leader-elect", "--authentication-kubeconfig", "--authorization-kubeconfig",
    "--lock-object-name", "--profiling",
)  # fmt: skip


def test_multi_scheduler_accepts_the_readmes_arguments(tmp_path: Path):
    """kube-scheduler's flags are set aside, with their values; the flags of the extender keep their effect."""
    found = _scheduler(_README.split(), tmp_path)
    assert (found.port, found.foreign, found.klog) == (8888, _README_IGNORED, Klog(6))


@pytest.mark.parametrize(
    ("argument", "message"),
    [("--leader-elekt", "unknown flag --leader-elekt"), ("false", "unexpected argument false")],
)
def test_multi_scheduler_refuses_arguments_that_kube_scheduler_does_not_have(
    argument: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        _scheduler(["--leader-elect", argument], tmp_path)
    assert message in capsys.readouterr().err


def test_flag_of_kube_scheduler_needs_its_value(tmp_path: Path):
    with pytest.raises(ConfigError, match="--bind-address: needs a value"):
        _scheduler(["--bind-address"], tmp_path)


def test_each_flag_of_kube_scheduler_is_reported_once(capfd: pytest.CaptureFixture[str]):
    """The warning says what to do with the flag."""
    argv = ["--kubeconfig=/k", "--log-format=json", *_README.split(), "--profiling"]
    assert PRINT(argv) == 0
    printed, logged = capfd.readouterr()
    warned = [json.loads(line) for line in logged.splitlines()]
    # --leader-elect is a setting of the printed configuration.
    assert [line["flag"] for line in warned] == [flag for flag in _README_IGNORED if flag != "--leader-elect"]
    assert all("stock kube-scheduler" in line["next"] for line in warned)
    configuration = yaml.safe_load(printed)
    assert configuration["extenders"][0]["urlPrefix"] == "http://127.0.0.1:8888"
    assert configuration["clientConnection"]["kubeconfig"] == "/k"


@pytest.mark.parametrize(
    ("argv", "url", "extender"),
    [
        ("", "http://127.0.0.1:8888", {"enableHTTPS": False}),
        ("--bind --address=10.0.0.1 --port=1", "http://10.0.0.1:1", {"bindVerb": "bind"}),
        ("--address=::1", "http://[::1]:8888", {}),
        ("--secret-name=s --ca-file=/ca", "https://127.0.0.1:8888", {"tlsConfig": {"caFile": "/ca"}}),
        ("--url=https://x.svc:8888/ --ca-file=/ca", "https://x.svc:8888", {"enableHTTPS": True}),
    ],
)
def test_printed_configuration_agrees_with_the_extenders_flags(argv: str, url: str, extender: dict[str, Any]):
    (entry,) = yaml.safe_load(PRINT.parse(argv.split(), {}).text())["extenders"]
    assert entry["urlPrefix"] == url
    assert entry.items() >= extender.items()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--secret-name=s", "--ca-file: required"),
        ("--cert-file=c", "--cert-file and --key-file"),
        ("--safe-scheduler-routes", "--config: required"),
    ],
)
def test_configuration_that_the_scheduler_cannot_use_is_not_printed(argv: str, message: str):
    with pytest.raises(ConfigError, match=message):
        PRINT.parse(argv.split(), {})


@pytest.mark.parametrize(
    "parse",
    [
        lambda argv, _: virtual_node.config.command_line.PROGRAM.parse(["--client-kubeconfig=/k", *argv], {}),
        lambda argv, _: webhook.program.PROGRAM.parse(argv, {}),
        lambda argv, _: descheduler.program.PROGRAM.parse(argv),
        _scheduler,
    ],
    ids=["virtual-node", "webhook", "descheduler", "multi-scheduler"],
)
def test_every_program_accepts_klogs_flags(parse: Callable[[Sequence[str], Path], Any], tmp_path: Path):
    """Those without effect are kept for the log."""
    assert parse(f"-v=4 {_OTHERS}".split(), tmp_path).klog == Klog(4, _IGNORED)


def test_flags_without_effect_are_logged_once_at_start(capfd: pytest.CaptureFixture[str]):
    """In one line; the verbosity has made that a debug log."""
    options = descheduler.program.PROGRAM.parse(f"-v=4 {_OTHERS} --log-format=json".split())

    async def run(_options: Any) -> int:
        log.get_logger(component="x").debug("details")
        return 0

    assert start(options, run) == 0
    first, second = capfd.readouterr().err.splitlines()
    assert "flags without effect" in first
    assert all(flag in first for flag in _IGNORED)
    assert '"details"' in second
