"""Connects the commands for people to clusters with kubectl's flags, and explains failures."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

from clusterset.model.namespace_map import DNS_LABEL
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.auth.proxies import without_password
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.process.flags import add_flag, duration
from virtual_node.certificates.expiry import UPPER, Expiry, span
from virtual_node.examine.connections import Failure, failure

TIMEOUT = 10.0
"""Seconds to wait for each response."""
_NO_LIMIT = 365 * 86400.0
"""Seconds that stand for no limit, so that no code needs to handle a missing timeout."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare kubectl's flags ``--kubeconfig``, ``--context`` and ``--request-timeout``."""
    add_flag(parser, "--kubeconfig FILE", "upper cluster's ($KUBECONFIG, ~/.kube/config, in-cluster)")
    add_flag(parser, "--context CONTEXT", "context of the kubeconfig (its current-context)")
    add_request_timeout(parser)


def label(text: str) -> str:
    """Return the text if it is a DNS-1123 label, such as the name of a namespace (for argparse's ``type``)."""
    if not DNS_LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: lower-case letters, digits and dashes, at most 63"
        )
    return text


def add_request_timeout(parser: argparse.ArgumentParser) -> None:
    """Declare ``--request-timeout``."""
    add_flag(
        parser,
        "--request-timeout D",
        "time limit of one request to a cluster; 0: none (10s)",
        type=request_timeout,
        default=f"{TIMEOUT:g}s",
    )


def request_timeout(text: str) -> float:
    """Convert kubectl's ``--request-timeout`` (``5``, ``5s``, ``1m``) to seconds, for argparse; 0 means no limit.

    Parses like client-go: k8s.io/client-go/tools/clientcmd, ParseTimeout.
    """
    return (float(text) if text.isdecimal() else duration(text)) or _NO_LIMIT


def upper(options: argparse.Namespace, *, agent: str) -> AbstractAsyncContextManager[Client]:
    """Open a client of the upper cluster like ``by_file``, configured by the flags of ``add_flags``."""
    timeout, context = options.request_timeout, options.context
    return by_file(
        options.kubeconfig, agent=agent, context=context, cluster=UPPER, timeout=timeout, in_cluster=True
    )


class RequestError(ConfigError):
    """A request failed that a command cannot do without."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


@contextlib.asynccontextmanager
async def by_file(
    path: str,
    *,
    agent: str,
    context: str = "",
    cluster: str = "",
    server: str = "",
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of each request
    in_cluster: bool = False,
) -> AsyncIterator[Client]:
    """Open a client of the cluster that a kubeconfig leads to.

    Args:
        path: the kubeconfig; if given, no other place is searched.
        agent: user agent, shown in the server's audit log.
        context: context of the kubeconfig; empty: its current one.
        cluster: name of the cluster; empty: the path.
        server: overrides the server's URL; empty: that of the kubeconfig.
        timeout: seconds to wait for each response.
        in_cluster: whether the pod's service account is used if there is no kubeconfig.

    Raises:
        RequestError: the caller's block raised an ``ApiError``; the message has the next step.
        ConfigError: there is no usable kubeconfig.
    """
    config = await kubeconfig.load(path, context=context, server=server, in_cluster=in_cluster)
    async with Client(config, user_agent=agent, cluster=cluster or path, timeout=timeout) as client:
        try:
            yield client
        except ApiError as error:
            trouble = explain(error, config, path=path, context=context, in_cluster=in_cluster)
            raise RequestError(trouble) from None


def explain(
    error: ApiError, config: ConnectionConfig, *, path: str, context: str = "", in_cluster: bool = False
) -> Trouble:
    """Return cause and next step of a failed request, see ``explain_failure``.

    Args:
        error: the error of the request.
        config: connection that was used.
        path: the connection's kubeconfig; empty: found as ``kubeconfig.load`` finds it.
        context: context of that kubeconfig; empty: its current one.
        in_cluster: whether the pod's service account is used if there is no kubeconfig.
    """
    # cryptography is only needed to explain a failure.
    from virtual_node.certificates import expiries as certificate_expiries  # noqa: PLC0415

    expiries = certificate_expiries.of_kubeconfig("", path, context=context, in_cluster=in_cluster)
    return explain_failure(error, config, expiries=expiries, now=datetime.now(UTC))


_VERIFY = re.compile(r"certificate verify failed: (.*?)[.]? \(_ssl")
_STEPS = {
    Failure.REFUSED: "is the cluster running, and is it the intended one?",
    Failure.SILENT: "is it reachable from here (VPN, firewall, proxy), and is it the intended one?",
    Failure.NO_NAME: "is the name correct, and does the DNS used here resolve it?",
    Failure.UNTRUSTED: "give the kubeconfig the CA of this API server (certificate-authority-data)",
    Failure.TLS: "does an API server listen there, and does it accept the kubeconfig's client certificate?",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, including server and kubeconfig, and what to do next."""

    what: str
    step: str

    def __str__(self) -> str:
        return f"{self.what}; {self.step}" if self.step else self.what


def explain_failure(
    error: ApiError, config: ConnectionConfig, *, expiries: Sequence[Expiry], now: datetime
) -> Trouble:
    """Return the cause of a failed request and the next step.

    Args:
        error: the error of the request.
        config: connection that was used.
        expiries: expiry times of the kubeconfig's credentials.
        now: timezone-aware current time.
    """
    place = f"{config.server} ({_origin(config)})"
    kind = failure(error.message, error.code)
    ended = [one for one in expiries if one.ends <= now]
    if ended and (error.code == 401 or kind is Failure.TLS):
        what = "token" if ended[0].kind == "Token" else "client certificate"
        return Trouble(
            f"{place}: the kubeconfig's {what} expired {span(now - ended[0].ends)} ago", "renew it"
        )
    if error.code == 401:
        return Trouble(f"{place} does not accept the kubeconfig's credentials (401)", "renew them")
    if error.code == 403:
        return Trouble(f"{place}: {error.message}", "ask an administrator for that right")
    if error.code >= 500:
        return Trouble(f"{place}: {error}", "check it: kubectl get --raw '/readyz?verbose'")
    if error.code or kind not in _STEPS:
        return Trouble(f"{place}: {error}", "")
    detail = _VERIFY.search(error.message)
    detail_text = f": {detail[1]}" if detail else ""
    step = "renew the API server's certificate" if "expired" in detail_text else _STEPS[kind]
    return Trouble(f"{place}: {kind.value}{detail_text}", step)


def _origin(config: ConnectionConfig) -> str:
    parts = [config.source or "no kubeconfig"]
    if config.context_name:
        parts.append(f"context {config.context_name}")
    if config.proxy_url:
        parts.append(f"through {without_password(config.proxy_url)}")
    return ", ".join(parts)
