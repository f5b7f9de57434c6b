"""A worker's identity, from options, environment and service account."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest

from swarm.worker.identity import Settings, SetupError, bound_pod, resolve


def _token(uid: str) -> str:
    claims = {"kubernetes.io": {"pod": {"name": "p", "uid": uid}}}
    return f"x.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.y"


def test_reads_the_service_account_of_a_pod(tmp_path):
    """The token has the upper pod's UID; POD_UID in a lower cluster is the lower pod's."""
    for name, text in (("token", _token("upper")), ("namespace", "team\n"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    environment = {
        "SWARM_NAME": "streams",
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "6443",
        "HOSTNAME": "worker-3",
        "POD_UID": "lower",
    }
    found = resolve(Settings(), environment, account=str(tmp_path))
    assert (found.swarm, found.namespace, found.worker, found.pod_uid) == (
        "streams",
        "team",
        "worker-3",
        "upper",
    )
    assert found.api_server == "https://[fd00::1]:6443"
    assert found.ca_file == str(tmp_path / "ca.crt")
    assert found.http_port == 9090


def test_options_and_swarm_variables_take_precedence(tmp_path):
    """Then settings for tests and for workers outside of pods."""
    environment = {
        "SWARM_API_SERVER": "https://up:6443/",
        "SWARM_POD_UID": "u",
        "HTTP_PORT": "0",
        "HOSTNAME": "h",
    }
    found = resolve(Settings(swarm="s", worker="w"), environment, account=str(tmp_path))
    assert (found.api_server, found.pod_uid, found.worker, found.namespace) == (
        "https://up:6443",
        "u",
        "w",
        "swarm",
    )
    assert found.http_port == 0


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (Settings(api_server="https://up", pod_uid="u"), "SWARM_NAME"),
        (Settings(swarm="s", pod_uid="u"), "SWARM_API_SERVER"),
        (Settings(swarm="s", api_server="https://up"), "SWARM_POD_UID"),
    ],
)
def test_errors_name_the_missing_setting(settings, missing, tmp_path):
    """A worker that reads a file needs none of them."""
    with pytest.raises(SetupError, match=missing):
        resolve(settings, {}, account=str(tmp_path))
    assert resolve(Settings(file="share.json"), {}, account=str(tmp_path)).worker == "swarm-worker-0"


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "a.bnVsbA.c", "a.e30.c"])
def test_token_without_a_pod_has_no_uid(token):
    """Tokens of users are not bound to pods."""
    assert bound_pod(token) == ""


def test_library_imports_only_aiohttp():
    """Users' workers must not load a Kubernetes client with it."""
    code = "import sys, swarm.worker.sidecar; print(*{one.split('.')[0] for one in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    unwanted = {
        "kubernetes_asyncio",
        "clusterset",
        "controller_runtime",
        "msgspec",
        "structlog",
        "prometheus_client",
        "yaml",
        "rich",
    }
    assert "aiohttp" in loaded
    assert not unwanted & set(loaded)
