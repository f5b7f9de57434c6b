"""A migrant's command line of kube-scheduler, and the configuration that the multi-scheduler prints for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller_runtime.process.flags import take_klog
from hack.sandbox.builds import binaries
from hack.sandbox.command import command
from multi_scheduler.print_configuration import PROGRAM
from multi_scheduler.program import KUBE_SCHEDULER

pytestmark = pytest.mark.e2e
_FLAG = re.compile(r"^ +(?:-\w, )?--([a-z0-9-]+)(?: (\S+))?  ", re.MULTILINE)
_KUBECONFIG = """
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: a, context: {cluster: a}}]
current-context: a
"""
_OWN = {"config", "help", "kubeconfig", "master", "version"}


async def _kube_scheduler() -> Path:
    return (await binaries.ensure(["kube-scheduler"]))["kube-scheduler"]


async def test_every_flag_of_the_real_kube_scheduler_is_accepted():
    """As switch or with a value, as its help says; klog's flags are accepted by every program."""
    output = (await command([str(await _kube_scheduler()), "--help"])).stdout
    listed = {name: value for name, value in _FLAG.findall(output) if name not in _OWN}
    assert len(listed) > 40
    values = {name for name, value in listed.items() if value and not take_klog([f"--{name}=1"])[1].ignored}
    assert values - {"v"} <= KUBE_SCHEDULER.values
    assert {name for name, value in listed.items() if not value} <= KUBE_SCHEDULER.switches


async def test_real_kube_scheduler_reads_the_printed_configuration(tmp_path: Path):
    """It validates the file strictly, writes its full form and ends."""
    file, full = tmp_path / "scheduler.yaml", tmp_path / "full.yaml"
    kubeconfig = tmp_path / "upper.yaml"
    kubeconfig.write_text(_KUBECONFIG, encoding="utf-8")
    text = PROGRAM.parse([f"--kubeconfig={kubeconfig}", "--bind"], {}).text()
    file.write_text(text, encoding="utf-8")
    started = [
        str(await _kube_scheduler()),
        f"--config={file}",
        f"--write-config-to={full}",
        "--secure-port=0",
    ]
    await command(started, check=False, timeout=60)
    assert "urlPrefix: http://127.0.0.1:8888" in full.read_text(encoding="utf-8")
