"""Finds the worker's identity and its API server, from options, environment and service account."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class SetupError(Exception):
    """A setting is missing or wrong; the message names it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings. ``resolve`` fills in empty fields."""

    swarm: str = ""
    """Name of the Swarm object."""
    namespace: str = ""
    worker: str = ""
    """Name of this worker's pod."""
    pod_uid: str = ""
    """UID of this worker's pod in the upper cluster."""
    api_server: str = ""
    """URL of the API server."""
    token_file: str = ""
    ca_file: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    file: str = ""
    """File with the worker's share, or directory of shares, to read instead of the API."""
    http_port: int | None = None
    """Port of ``/internal/version``, ``/internal/health`` and ``/metrics``; 0: no server; None: from ``HTTP_PORT``, 9090 by default."""
    drain_seconds: float = 25.0
    """Seconds to stop all jobs after SIGTERM. Must be less than ``terminationGracePeriodSeconds``."""


def resolve(settings: Settings, environ: Mapping[str, str], *, account: str = _ACCOUNT) -> Settings:
    """Complete settings from the environment and the service account.

    Args:
        settings: given by the user.
        environ: environment of the process.
        account: directory of the mounted service account.

    Raises:
        SetupError: a required value is missing.
    """

    def first(given: str, *names: str, default: str = "") -> str:
        return next(filter(None, (given, *(environ.get(name, "") for name in names))), default)

    mounted = {name: path for name in ("token", "ca.crt") if (path := Path(account, name)).exists()}
    token_file = first(settings.token_file, "SWARM_TOKEN_FILE", default=str(mounted.get("token", "")))
    file = first(settings.file, "SWARM_FILE")
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    resolved = Settings(
        swarm=first(settings.swarm, "SWARM_NAME"),
        namespace=first(settings.namespace, "SWARM_NAMESPACE", "POD_NAMESPACE")
        or _read(Path(account, "namespace"))
        or environ.get("NAMESPACE", "swarm"),
        worker=first(settings.worker, "SWARM_WORKER", "POD_NAME", "HOSTNAME", default="swarm-worker-0"),
        pod_uid=first(settings.pod_uid, "SWARM_POD_UID")
        or (bound_pod(_read(Path(token_file))) if token_file else "")
        or environ.get("POD_UID", ""),
        api_server=first(settings.api_server, "SWARM_API_SERVER").rstrip("/")
        or (f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""),
        token_file=token_file,
        ca_file=first(settings.ca_file, "SWARM_CA_FILE", default=str(mounted.get("ca.crt", ""))),
        client_cert_file=first(settings.client_cert_file, "SWARM_CLIENT_CERT_FILE"),
        client_key_file=first(settings.client_key_file, "SWARM_CLIENT_KEY_FILE"),
        file=file,
        http_port=_port(environ) if settings.http_port is None else settings.http_port,
        drain_seconds=settings.drain_seconds,
    )
    if not file:
        _check(resolved)
    return resolved


def new_session() -> str:
    """Return a random name for a new session."""
    return secrets.token_hex(16)


def bound_pod(token: str) -> str:
    """Return the UID of the pod that a service account token is bound to; empty if it names none.

    The signature is not verified, because the token is this process's own.
    """
    with contextlib.suppress(ValueError, IndexError, AttributeError):
        payload = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        uid = claims.get("kubernetes.io", {}).get("pod", {}).get("uid", "")
        return uid if isinstance(uid, str) else ""
    return ""


def _port(environ: Mapping[str, str]) -> int:
    text = environ.get("HTTP_PORT", "9090")
    if not text.isdecimal() or int(text) > 65535:
        raise SetupError(f"HTTP_PORT is {text!r}, not a port")
    return int(text)


def _check(settings: Settings) -> None:
    if not settings.swarm:
        raise SetupError("the name of the Swarm is missing: set --swarm or SWARM_NAME")
    if not settings.api_server:
        raise SetupError("no API server: set SWARM_API_SERVER, or run in a pod, or set --file")
    if not settings.pod_uid:
        raise SetupError("the pod's UID is not known: set SWARM_POD_UID, or mount a service account token")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
