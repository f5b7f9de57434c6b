"""Credentials for an API server: always current headers, or a client certificate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import msgspec

from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.auth.kubeconfig_file import Section
from controller_runtime.errors import ConfigError
from controller_runtime.tls.pem import KeyPair

REREAD_SECONDS = 60.0
"""Age in seconds at which a file that may be rotated is read again, as in client-go."""
API_VERSIONS = frozenset({"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"})
_RUN_TIMEOUT = 60.0
_DIALOG_TIMEOUT = 600.0
"""Seconds that a plugin may run if it can ask its user, for example to sign in with a browser."""
_END_SECONDS = 2.0
"""Seconds that a killed plugin may take to end."""
_EARLY = timedelta(seconds=60)
"""A credential is renewed this long before its expiry, or a fifth of its lifetime before if that is
shorter."""
_FORCE_INTERVAL = 5.0
"""Seconds between two runs caused by 401s: limits runs of a plugin whose credentials the server refuses."""
_EXPIRED_INTERVAL = 1.0
"""Seconds between two runs of a plugin that returns expired credentials, for example because of a wrong
clock."""
_RETRY_INTERVAL = 10.0
"""Seconds between two attempts to renew a credential that is still valid."""
_LONGEST_COMPLAINT = 300
_MOST_OUTPUT = 4 * 1024 * 1024
"""Bytes that a plugin may write to each of its outputs."""


class Credentials:
    """A source of authenticating headers.

    This base class returns none, because a client certificate needs no header.

    Attributes:
        certificate: the client certificate that a plugin returned with the headers; None: it returned none.
            The TLS context may still have one from a file.
    """

    certificate: KeyPair | None = None

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the headers to send now.

        Args:
            refresh: whether to ignore cached credentials, after a 401.

        Raises:
            ConfigError: there are no headers to send; the error contains the source and the reason.
        """
        return {}

    async def close(self) -> None:
        """Stop subprocesses of these credentials."""


class StaticCredentials(Credentials):
    """Headers that never change."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the fixed headers."""
        return self._headers


class TokenFile(Credentials):
    """A bearer token in a file that may be rotated, such as a pod's service account token."""

    def __init__(self, path: Path, *, source: str, fallback: str = "") -> None:
        """Create credentials; the file is read on first use.

        Args:
            path: the file; white space around the token is ignored.
            source: the file's role, for messages.
            fallback: the token until the file can be read.
        """
        self._path = path
        self._source = source
        self._headers = bearer(fallback) if fallback else {}
        self._read_at: float | None = None

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the header of the token.

        The file is read once a minute and after a 401. If it is unreadable, the last valid token is kept.
        """
        now = asyncio.get_running_loop().time()
        if refresh or self._read_at is None or now - self._read_at >= REREAD_SECONDS:
            try:
                token = self._path.read_text(encoding="utf-8").strip()
                problem = token_problem(token)
            except (OSError, UnicodeDecodeError) as error:
                token, problem = "", getattr(error, "strerror", None) or "is not text"
            if not problem:
                self._headers = bearer(token)
            elif not self._headers:
                raise ConfigError(f"{self._source}: token file {self._path}: {problem}")
            self._read_at = now
        return self._headers


def token_problem(token: str) -> str:
    """Return why a text cannot be a bearer token; empty if it can. RFC 6750 is stricter."""
    if not token:
        return "is empty"
    if not token.isascii() or not token.isprintable() or " " in token:
        return "is not a token: it has characters that an HTTP header must not have"
    return ""


def bearer(token: str) -> dict[str, str]:
    """Return the header of a bearer token."""
    return {"Authorization": f"Bearer {token}"}


class AuthProvider(Credentials):
    """Signs in with kubernetes-asyncio: OpenID Connect with refresh tokens, and its other providers.

    A refresh token that the issuer replaces is kept in memory only; the kubeconfig is not written.
    """

    def __init__(self, user: Section) -> None:
        self._source = user.at("auth-provider")
        # kubernetes-asyncio stores renewed tokens in this dict and checks their expiry on every call.
        self._whole: dict[str, Any] = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://unused"}}],
            "users": [{"name": "u", "user": {"auth-provider": dict(user.values["auth-provider"])}}],
        }
        self._headers: dict[str, str] | None = None
        self._asked_at = 0.0
        self._lock = asyncio.Lock()

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the headers to send now; check expiry once a minute, one caller at a time."""
        is_due = asyncio.get_running_loop().time() - self._asked_at >= REREAD_SECONDS
        if self._headers is not None and not refresh and not is_due:
            return self._headers
        before = self._headers
        async with self._lock:
            if self._headers is before or self._headers is None:
                await self._sign_in()
        assert self._headers is not None
        return self._headers

    async def _sign_in(self) -> None:
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - loads 850 modules of generated models (37 MB)
        from kubernetes_asyncio.config import load_kube_config_from_dict  # noqa: PLC0415

        configuration = Configuration()
        try:
            await load_kube_config_from_dict(self._whole, client_configuration=configuration)
        except Exception as error:
            if self._headers is None:
                words = " ".join(str(error).split()) or type(error).__name__
                raise ConfigError(f"{self._source}: {words}") from error
        token = configuration.api_key.get("BearerToken", "")
        if token:
            self._headers = {"Authorization": token}
        elif self._headers is None:
            raise ConfigError(
                f"{self._source}: this provider is not supported: write exec with a credential plugin"
            )
        self._asked_at = asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin as configured in a kubeconfig.

    Attributes:
        command: a path, or a name to look up in $PATH.
        args: its arguments.
        env: added to our own environment.
        api_version: the version of ExecCredential that it uses.
        interactive_mode: ``Never``, ``IfAvailable`` or ``Always``: whether it may read from our terminal.
        cluster: the ``spec.cluster`` of ExecCredential for ``provideClusterInfo``; None: not requested.
        install_hint: a hint for users who do not have the plugin.
        source: the kubeconfig and the user, for messages.
    """

    command: str
    source: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_version: str = "client.authentication.k8s.io/v1"
    interactive_mode: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None
    install_hint: str = ""


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Answer(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: _Status | None = None


class ExecCredentials(Credentials):
    """Runs a plugin when there is no credential, before one expires, and after a 401.

    All callers share one run, which continues when a caller is cancelled. A credential without an expiry is
    used until the server refuses it.
    """

    def __init__(self, plugin: Plugin, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Create credentials; the plugin runs on first use. ``now`` is compared with the expiry."""
        self._plugin = plugin
        self._now = now
        self._headers: dict[str, str] | None = None
        self._expiry: datetime | None = None
        self._renew_at: datetime | None = None
        self._run: asyncio.Task[None] | None = None
        self._ran_at = self._forced_at = self._failed_at = float("-inf")

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the headers to send now; empty if the plugin returns only a certificate."""
        if self._headers is not None and not refresh and not self._is_due():
            return self._headers
        moment = asyncio.get_running_loop().time()
        if self._run is None:
            if self._headers is not None and moment < self._next_run(forced=refresh):
                return self._headers
            self._ran_at = moment
            if refresh:
                self._forced_at = moment
            self._run = asyncio.create_task(self._renew(), name=f"credentials of {self._plugin.source}")
            self._run.add_done_callback(self._ended)
        try:
            await asyncio.shield(self._run)
        except ConfigError:
            self._failed_at = asyncio.get_running_loop().time()
            if self._headers is None or refresh or self._is_expired():
                raise
        assert self._headers is not None
        return self._headers

    async def close(self) -> None:
        """Stop a running plugin."""
        if self._run is not None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConfigError):
                await self._run

    def _is_due(self) -> bool:
        return self._renew_at is not None and self._now() >= self._renew_at

    def _is_expired(self) -> bool:
        return self._expiry is not None and self._now() >= self._expiry

    def _next_run(self, *, forced: bool) -> float:
        if forced:
            return self._forced_at + _FORCE_INTERVAL
        if self._is_expired():
            return self._ran_at + _EXPIRED_INTERVAL
        return self._failed_at + _RETRY_INTERVAL

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._run = None
        if not run.cancelled():
            run.exception()  # mark it as retrieved: if all callers were cancelled, asyncio would log it

    async def _renew(self) -> None:
        status = _read(await _execute(self._plugin), self._plugin)
        self._headers = bearer(status.token) if status.token else {}
        pair = KeyPair(status.client_certificate_data.encode(), status.client_key_data.encode())
        # An unchanged pair is not replaced, so that connections made with it are kept.
        if pair.certificate and pair != self.certificate:
            self.certificate = pair
        self._expiry = status.expiration_timestamp
        self._renew_at = None
        if self._expiry is not None:
            now = self._now()
            self._renew_at = self._expiry - min(_EARLY, max(timedelta(), self._expiry - now) / 5)


def has_terminal(stream: TextIO | None) -> bool:
    """Report whether a standard stream is a terminal; None, a closed stream, is not."""
    return stream is not None and not stream.closed and stream.isatty()


async def _execute(plugin: Plugin) -> bytes:
    """Return the output of a plugin. As in client-go, it shares our terminal, if there is one, to ask its user."""
    is_dialog = plugin.interactive_mode != "Never" and has_terminal(sys.stdin)
    spec: dict[str, Any] = {"interactive": is_dialog}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=environment,
            stdin=None if is_dialog else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            # On a terminal, the user sees prompts and errors at once.
            stderr=None if has_terminal(sys.stderr) else asyncio.subprocess.PIPE,
            # A process of another session cannot read from our terminal.
            start_new_session=not is_dialog,
        )
    except (OSError, ValueError) as error:
        hint = f" ({' '.join(plugin.install_hint.split())})" if plugin.install_hint else ""
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{plugin.source}.exec.command: {plugin.command}: {reason}{hint}") from None
    where = f"{plugin.source}.exec: {plugin.command}"
    limit = _DIALOG_TIMEOUT if is_dialog else _RUN_TIMEOUT
    try:
        async with asyncio.timeout(limit):
            # Read both pipes concurrently, because a plugin blocks when it writes to a full pipe.
            output, complaint, _ = await asyncio.gather(
                _read_all(process.stdout, process), _read_all(process.stderr, process), process.wait()
            )
    except TimeoutError:
        raise ConfigError(f"{where}: no answer in {limit:g} s") from None
    finally:
        if process.returncode is None:
            _kill(process)
            # ``wait`` also waits for the pipes, which the child of a wrapper keeps open that shares our terminal.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_SECONDS)
    if max(len(output), len(complaint)) > _MOST_OUTPUT:
        raise ConfigError(f"{where}: more than {_MOST_OUTPUT:,} bytes of output")
    if process.returncode:
        words = " ".join(complaint.decode("utf-8", "replace").split())[-_LONGEST_COMPLAINT:]
        tail = f": {words}" if words else ""
        raise ConfigError(f"{where}: exit code {process.returncode}{tail}")
    return output


async def _read_all(pipe: asyncio.StreamReader | None, process: asyncio.subprocess.Process) -> bytes:
    """Return the content of a pipe, cut after the limit; kill the process if it writes more. None: it has no pipe."""
    found = bytearray()
    if pipe is None:
        return b""
    while chunk := await pipe.read(_MOST_OUTPUT):
        if len(found) <= _MOST_OUTPUT:
            found += chunk
        else:
            _kill(process)
    return bytes(found)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a plugin and its children, because a wrapper's child would keep open the pipes that we read.

    A plugin that shares our terminal is in our process group, so only the plugin itself is killed.
    """
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(process.pid) == os.getpgid(0):
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def _read(output: bytes, plugin: Plugin) -> _Status:
    where = f"{plugin.source}.exec: {plugin.command}"
    try:
        answer = _decode(output)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: its output is not an ExecCredential: {error}") from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        got = " ".join(filter(None, (answer.api_version, answer.kind))) or "something else"
        raise ConfigError(f"{where}: its output is {got}, not {plugin.api_version} ExecCredential")
    status = answer.status or _Status()
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise ConfigError(f"{where}: set both clientCertificateData and clientKeyData, or neither")
    if not status.token and not status.client_certificate_data:
        raise ConfigError(f"{where}: its output has neither a token nor a client certificate")
    if status.token and (problem := token_problem(status.token)):
        raise ConfigError(f"{where}: its token {problem}")
    if status.expiration_timestamp is not None and status.expiration_timestamp.tzinfo is None:
        raise ConfigError(f"{where}: expirationTimestamp has no time zone")
    return status


_decode = decoder(_Answer)
