"""The command line, and k8s-swarm's."""

from __future__ import annotations

import pytest

from controller_runtime.errors import ConfigError
from swarm import flags
from swarm.compatibility import Legacy


def test_command_line_of_k8s_swarm_describes_a_swarm(tmp_path, monkeypatch):
    """A flag overrides the environment, which overrides the default."""
    (tmp_path / "config.yml").write_text("jobs:\n  - stream:a\n  - y\nversion: 0\n", encoding="utf-8")
    monkeypatch.setenv("CONFIG_PATH", str(tmp_path))
    monkeypatch.setenv("WATCHED_LABEL", "from-environment")
    options = flags.parse(["controller", "internal", "--env=prod"])
    # "y" is a job's name: k8s-swarm decodes the list as strings.
    expected = Legacy("swarm", "from-environment", "swarm-worker-config", ("stream:a", "y"), 9090)
    assert options.legacy == expected
    assert (options.namespace, options.health_addr) == ("swarm", ":9090")
    line = ["--label=w", "--namespace=n", "--configmap=c", "--http-port=0", "--log-level=warn"]
    options = flags.parse(["controller", "external", *line])
    assert options.legacy == Legacy("n", "w", "c", ("stream:a", "y"), 0)
    assert options.health_addr == ""
    assert options.legacy.body()["spec"]["workers"] == {"statefulSet": "w", "httpPort": 0}


def test_errors_name_the_flag(tmp_path):
    """Before anything is started."""
    with pytest.raises(ConfigError, match="--config"):
        flags.parse(["controller", "internal", f"--config-path={tmp_path}"])
    (tmp_path / "config.yml").write_text("jobs: []", encoding="utf-8")
    with pytest.raises(ConfigError, match="--http-port"):
        flags.parse(["controller", "internal", f"--config-path={tmp_path}", "--http-port=x"])
    with pytest.raises(ConfigError, match="--leader-elect-lease-duration"):
        flags.parse(["--leader-elect-lease-duration=1s"])
