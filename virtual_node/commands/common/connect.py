"""Connects the commands for people to clusters with kubectl's flags, and explains failures."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import ApiError, ConfigError
from virtual_node.commands.common import flags
from virtual_node.commands.common.flags import TIMEOUT
from virtual_node.examine.facts import ANSWER, Answer
from virtual_node.examine.finding import UPPER
from virtual_node.examine.reader import Trouble, explain_failure
from virtual_node.examine.snapshot import View

if TYPE_CHECKING:
    from controller_runtime.client.client import Client


def upper(options: argparse.Namespace, *, agent: str) -> AbstractAsyncContextManager[Client]:
    """Open a client of the upper cluster like ``by_file``, configured by the flags of ``add_flags``."""
    return by_file(options.kubeconfig, agent=agent, **_of_upper(options))


def upper_briefly(options: argparse.Namespace, *, agent: str) -> AbstractAsyncContextManager[Verbs]:
    """Open a client of the upper cluster for a few reads; it starts in a tenth of the time of ``upper``'s client."""
    return briefly(options.kubeconfig, agent=agent, **_of_upper(options))


def _of_upper(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``by_file`` and ``briefly`` for the upper cluster."""
    return {
        "context": options.context,
        "cluster": UPPER,
        "timeout": options.request_timeout,
        "in_cluster": True,
        "impersonate": flags.impersonation(options),
    }


class RequestError(ConfigError):
    """A request failed that a command cannot do without."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


@contextlib.asynccontextmanager
async def answering(view: View) -> AsyncIterator[None]:
    """Store an error of the block, which opens a client of the cluster and reads it, as the cluster's answer."""
    try:
        yield
    except RequestError as error:
        server = (view.get(ANSWER) or Answer()).server
        view.put(ANSWER, Answer(server, error.trouble.what, error.trouble.step))
    except ConfigError as error:
        step = "correct the kubeconfig, or what it calls for credentials"
        view.put(ANSWER, Answer(error=str(error), step=step, usable=False))


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
    impersonate: Mapping[str, Any] = MappingProxyType({}),
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
        impersonate: as of ``kubeconfig.load``.

    Raises:
        RequestError: the caller's block raised an ``ApiError``; the message has the next step.
        ConfigError: there is no usable kubeconfig.
    """
    from controller_runtime.client.client import Client  # noqa: PLC0415 - aiohttp takes longer than a command's requests

    config = await kubeconfig.load(
        path, context=context, server=server, in_cluster=in_cluster, impersonate=impersonate
    )
    async with Client(config, user_agent=agent, cluster=cluster or path, timeout=timeout) as client:
        with _explained(config, path=path, context=context, in_cluster=in_cluster):
            yield client


@contextlib.asynccontextmanager
async def briefly(
    path: str,
    *,
    agent: str,
    context: str = "",
    cluster: str = "",
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of each request
    in_cluster: bool = False,
    impersonate: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Verbs]:
    """Open a client for a few requests, without watches and streams; the arguments and errors are those of ``by_file``."""
    from controller_runtime.client.brief import BriefClient  # noqa: PLC0415 - help and completion of flags need no client

    config = await kubeconfig.load(path, context=context, in_cluster=in_cluster, impersonate=impersonate)
    async with BriefClient(config, user_agent=agent, cluster=cluster or path, timeout=timeout) as client:
        with _explained(config, path=path, context=context, in_cluster=in_cluster):
            yield client


@contextlib.contextmanager
def _explained(config: ConnectionConfig, *, path: str, context: str, in_cluster: bool) -> Iterator[None]:
    """Raise an ApiError of the block as RequestError."""
    try:
        yield
    except ApiError as error:
        trouble = explain(error, config, path=path, context=context, in_cluster=in_cluster)
        raise RequestError(trouble) from None


def explain(
    error: ApiError, config: ConnectionConfig, *, path: str, context: str = "", in_cluster: bool = False
) -> Trouble:
    """Return cause and next step of a request that failed on a connection, see ``explain_failure`` and ``by_file``."""
    # cryptography is only needed to explain a failure.
    from virtual_node.examine import expiries as certificate_expiries  # noqa: PLC0415

    expiries = certificate_expiries.of_kubeconfig("", path, context=context, in_cluster=in_cluster)
    return explain_failure(error, config, expiries=expiries, now=datetime.now(UTC))
