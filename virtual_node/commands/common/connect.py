"""How the commands for people get to clusters: kubectl's flags, and a word that helps when it is in vain."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from controller_runtime.auth import kubeconfig
from controller_runtime.auth.connection import ClusterConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.process.flags import duration
from virtual_node.certificates import expiries as inspect_expiries
from virtual_node.certificates.expiry import UPPER
from virtual_node.commands.common import connection_errors
from virtual_node.commands.common.connection_errors import Trouble

TIMEOUT = 10.0
"""Seconds for one answer."""
_NO_LIMIT = 365 * 86400.0
"""Seconds that nobody waits for; an answer that may take for ever would need a second kind of time-out everywhere."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare ``--kubeconfig``, ``--context`` and ``--request-timeout``, which are kubectl's."""
    parser.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="upper cluster's ($KUBECONFIG, ~/.kube/config, in-cluster)",
    )
    parser.add_argument(
        "--context", default="", metavar="CONTEXT", help="the kubeconfig's context (its current one)"
    )
    add_request_timeout(parser)


def add_request_timeout(parser: argparse.ArgumentParser) -> None:
    """Declare ``--request-timeout``."""
    parser.add_argument(
        "--request-timeout",
        type=request_timeout,
        default=f"{TIMEOUT:g}s",
        metavar="D",
        help="how long a cluster may take for one answer; 0: as long as it likes (10s)",
    )


def request_timeout(text: str) -> float:
    """The argparse type of kubectl's ``--request-timeout``, in seconds: ``5``, ``5s``, ``1m``; 0 is no limit.

    As client-go reads it: k8s.io/client-go/tools/clientcmd, ParseTimeout.
    """
    return (float(text) if text.isdecimal() else duration(text)) or _NO_LIMIT


@contextlib.asynccontextmanager
async def upper(options: argparse.Namespace, *, agent: str) -> AsyncIterator[Client]:
    """The upper cluster's client, by the flags of ``add_flags``.

    Args:
        options: the parsed flags.
        agent: names us in the server's audit log.

    Raises:
        ConfigError: there is no usable kubeconfig, or an ``ApiError`` ended what was done with the client; says what
            to do next.
    """
    config = await kubeconfig.load(options.kubeconfig or None, context=options.context or None)
    async with Client(config, user_agent=agent, cluster=UPPER, timeout=options.request_timeout) as client:
        try:
            yield client
        except ApiError as error:
            told = explain(error, config, path=options.kubeconfig, context=options.context, in_cluster=True)
            raise ConfigError(str(told)) from None


@contextlib.asynccontextmanager
async def by_file(
    path: str,
    *,
    agent: str,
    context: str = "",
    cluster: str = "",
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of each request
) -> AsyncIterator[Client]:
    """The client of the cluster that a kubeconfig leads to.

    Args:
        path: the kubeconfig; nothing else is tried.
        agent: names us in the server's audit log.
        context: of the kubeconfig; empty: its current one.
        cluster: its name; empty: the path.
        timeout: seconds for one answer.

    Raises:
        ConfigError: as for ``upper``.
    """
    config = await kubeconfig.load(path, context=context or None, in_cluster=False)
    async with Client(config, user_agent=agent, cluster=cluster or path, timeout=timeout) as client:
        try:
            yield client
        except ApiError as error:
            raise ConfigError(str(explain(error, config, path=path, context=context))) from None


def explain(
    error: ApiError, config: ClusterConfig, *, path: str, context: str = "", in_cluster: bool = False
) -> Trouble:
    """See ``trouble.explain``.

    Args:
        error: what a request ended with.
        config: where it went.
        path: the kubeconfig that it came from; empty: found as ``kubeconfig.load`` finds it.
        context: of that kubeconfig; empty: its current one.
        in_cluster: a pod's own account counts, too.
    """
    expiries = inspect_expiries.of_kubeconfig("", path, context=context, in_cluster=in_cluster)
    return connection_errors.explain(error, config, expiries=expiries, now=datetime.now(UTC))
