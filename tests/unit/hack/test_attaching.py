"""Attaching to kept clusters: what is restored, and what ends with the attached test."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.sandbox.attaching import attached, save
from hack.sandbox.cluster import Cluster
from hack.sandbox.errors import SandboxError
from hack.sandbox.process import Process
from hack.sandbox.sandbox import Sandbox
from hack.sandbox.stopping import running

_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


async def test_attached_stops_its_own_processes_and_no_cluster(tmp_path):
    etcd = Process("etcd", ["sleep", "60"], directory=tmp_path)
    await etcd.start()
    try:
        progress = lambda _line: None  # noqa: E731 - cannot be pickled, as a terminal's cannot
        made = Sandbox(directory=tmp_path, keep=True, progress=progress)
        cluster = Cluster(
            "upper",
            directory=tmp_path / "upper",
            binaries=dict.fromkeys(_PROGRAMS, Path("/bin/sleep")),
            etcd_url="",
            number=0,
        )
        cluster.api._connected()
        made.clusters = [cluster]
        save(made, progress)
        await made.disconnect()
        async with attached(tmp_path) as sandbox:
            assert sandbox.upper.kubeconfig == cluster.kubeconfig
            started = await sandbox.start_process("node", ["sleep", "60"])
            assert running(tmp_path) == {"etcd": etcd.identity, "node": started.identity}
        assert running(tmp_path) == {"etcd": etcd.identity}
    finally:
        await etcd.kill()
    assert (tmp_path / "attach.pickle").stat().st_mode & 0o777 == 0o600
    with pytest.raises(SandboxError, match="make up"):
        await attached(tmp_path).__aenter__()
