"""The command line, and k8s-swarm's."""

from __future__ import annotations

import pytest

from controller_runtime.errors import ConfigError
from swarm import compatibility
from swarm.compatibility import LegacySettings
from swarm.program import PROGRAM


def _described(options: LegacySettings) -> tuple[str, str, str, list[str], int]:
    """Return namespace, name, ConfigMap, jobs and port of the Swarm."""
    metadata, spec = options.body()["metadata"], options.body()["spec"]
    jobs = [job["name"] for job in spec["jobs"]]
    return metadata["namespace"], metadata["name"], spec["configMap"], jobs, spec["workers"]["httpPort"]


def test_command_line_of_k8s_swarm_describes_a_swarm(tmp_path, monkeypatch):
    """A flag overrides the environment, which overrides the default."""
    (tmp_path / "config.yml").write_text("jobs:\n  - stream:a\n  - y\nversion: 0\n", encoding="utf-8")
    monkeypatch.setenv("CONFIG_PATH", str(tmp_path))
    monkeypatch.setenv("WATCHED_LABEL", "from-environment")
    options = compatibility.PROGRAM.parse(["internal", "--env=prod"])
    # "y" is a job's name: k8s-swarm decodes the list as strings.
    assert _described(options) == (
        "swarm",
        "from-environment",
        "swarm-worker-config",
        ["stream:a", "y"],
        9090,
    )
    assert (options.namespace, options.controller.health_addr) == ("swarm", ":9090")
    line = ["--label=w", "--namespace=n", "--configmap=c", "--http-port=0", "--log-level=warn"]
    options = compatibility.PROGRAM.parse(["external", *line])
    assert _described(options) == ("n", "w", "c", ["stream:a", "y"], 0)
    assert options.controller.health_addr == ""
    assert options.body()["spec"]["workers"] == {"statefulSet": "w", "httpPort": 0}


def test_errors_name_the_flag(tmp_path, capsys):
    """Before anything is started."""
    with pytest.raises(ConfigError, match="--config"):
        compatibility.PROGRAM.parse(["internal", f"--config-path={tmp_path}"])
    (tmp_path / "config.yml").write_text("jobs: []", encoding="utf-8")
    with pytest.raises(SystemExit):
        compatibility.PROGRAM.parse(["internal", f"--config-path={tmp_path}", "--http-port=x"])
    assert "--http-port: invalid int value: 'x'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--http-port: 65536"):
        compatibility.PROGRAM.parse(["internal", f"--config-path={tmp_path}", "--http-port=65536"])
    with pytest.raises(ConfigError, match="--leader-elect-lease-duration"):
        PROGRAM.parse(["--leader-elect-lease-duration=1s"])
