"""The file that a shell reads to use a sandbox."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hack.image.python_packages import project
from hack.sandbox.commands import environment


def test_a_shell_reads_paths_with_blanks(tmp_path):
    """PATH begins with the sandbox's programs, and each cluster has a variable with its kubeconfig."""
    place = tmp_path / "a b" / "bin"
    kubeconfigs = {name: tmp_path / "a b" / name / "kubeconfig" for name in ("upper", "lower1")}
    file = tmp_path / "env"
    file.write_text(environment.text(place, kubeconfigs), encoding="utf-8")
    done = subprocess.run(
        ["sh", "-c", f'. {file}; printf "%s\\n" "${{PATH%%:*}}" "$KUBECONFIG" "$UPPER" "$LOWER1"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    upper = kubeconfigs["upper"]
    assert [Path(line) for line in done.stdout.splitlines()] == [place, upper, upper, kubeconfigs["lower1"]]


def test_every_program_of_the_project_is_on_the_path(tmp_path: Path, monkeypatch):
    """The documentation calls them all by name."""
    place = tmp_path / "venv"
    place.mkdir()
    for name in project()["project"]["scripts"]:
        (place / name).touch()
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    (tmp_path / "kubectl").touch()
    upper = SimpleNamespace(name="upper", kubeconfig=tmp_path / "kubeconfig")
    sandbox: Any = SimpleNamespace(
        directory=tmp_path, binaries={"kubectl": tmp_path / "kubectl"}, clusters=[upper]
    )
    environment.write(sandbox)
    found = {file.name for file in (tmp_path / "bin").iterdir()}
    assert found >= {
        f"virtual-node-{name}" for name in ("webhook", "multi-scheduler", "descheduler", "swarm")
    }
    assert {"kubectl", "sandbox", "virtual-node", "kubectl-virtual_node"} <= found
