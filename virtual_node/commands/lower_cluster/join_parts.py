"""Helpers shared by ``lower-cluster join`` and ``leave``: progress, marks on created objects, and reads."""

from __future__ import annotations

import argparse
import base64
import ipaddress
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery import readable
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal
from virtual_node.commands.common import connect

AGENT = "virtual-node-join"
_BY = "join"
_COMPARED = ("rules", "subjects")


def lower_client(options: argparse.Namespace) -> AbstractAsyncContextManager[Client]:
    """Open a client of the lower cluster, see ``connect.by_file``."""
    file, context = options.client_kubeconfig, options.client_context
    return connect.by_file(file, context=context, agent=AGENT, cluster=options.name)


def say(step: str, line: str) -> None:
    """Print a line of progress of a step."""
    terminal.block(f"{step:<8}  {readable.one_line(line)}")


def marked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an object with the annotation that marks objects created by ``join``."""
    metadata = body["metadata"]
    annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_CREATED_BY: _BY}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def is_marked(found: Mapping[str, Any]) -> bool:
    """Report whether ``join`` created an object."""
    return _annotations(found).get(names.ANNOTATION_CREATED_BY) == _BY


def joined_as(account: Mapping[str, Any]) -> dict[str, str]:
    """Return the names under which a lower cluster is joined, by identity of the upper cluster.

    Args:
        account: the ServiceAccount in the lower cluster.
    """
    return {
        key.removeprefix(names.JOINED_PREFIX): value
        for key, value in _annotations(account).items()
        if key.startswith(names.JOINED_PREFIX)
    }


def changes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that gives an object the wanted rules, subjects and data; empty: nothing differs."""
    patch = {key: wanted[key] for key in _COMPARED if key in wanted and found.get(key) != wanted[key]}
    held, strings = secret_data(found), wanted.get("stringData") or {}
    data = {key: value for key, value in strings.items() if held.get(key) != value}
    return {**patch, **({"stringData": data} if data else {})}


def secret_data(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return the decoded data of a Secret."""
    data = secret.get("data") or {}
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}


def require_reachable(server: str, *, given: bool) -> None:
    """Refuse an API server's address that only this machine can reach.

    Args:
        server: URL of the API server.
        given: whether the user gave the URL with ``--server``; then it is never refused.

    Raises:
        ConfigError: the address is a loopback address, which leads pods of the upper cluster to themselves.
    """
    if not given and is_loopback(urlsplit(server).hostname or ""):
        raise ConfigError(
            f"{server} is an address of this machine, which pods of the upper cluster cannot reach: give the address "
            "that they can with --server URL (kind: https://CLUSTER-control-plane:6443)"
        )


def is_loopback(host: str) -> bool:
    """Report whether a URL's host is a loopback address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


async def identity(client: Client) -> str:
    """Return the UID of a cluster's namespace ``kube-system``."""
    return str((await client.get(resources.NAMESPACES, "kube-system"))["metadata"]["uid"])


def _annotations(found: Mapping[str, Any]) -> Mapping[str, str]:
    return (found.get("metadata") or {}).get("annotations") or {}
