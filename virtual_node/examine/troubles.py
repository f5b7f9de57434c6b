"""Explains failed requests with the server, the kubeconfig and the next step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from controller_runtime.auth.proxies import without_password
from controller_runtime.errors import ApiError, is_namespace_gone
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.expiry import Expiry, span

if TYPE_CHECKING:
    from controller_runtime.auth.kubeconfig import ConnectionConfig

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
    ended = [expiry for expiry in expiries if expiry.ends <= now]
    if ended and (error.code == 401 or kind is Failure.TLS):
        what = "token" if ended[0].kind == "Token" else "client certificate"
        return Trouble(
            f"{place}: the kubeconfig's {what} expired {span(now - ended[0].ends)} ago", "renew it"
        )
    if error.code == 401:
        return Trouble(f"{place} does not accept the kubeconfig's credentials (401)", "renew them")
    if error.code == 403:
        step = "ask an administrator for that right"
        if is_namespace_gone(error):
            step = "repeat the command when the namespace is gone"
        return Trouble(f"{place}: {error.message}", step)
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
