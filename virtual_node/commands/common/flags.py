"""kubectl's flags of the commands for people. Imports no client, because ``--help`` and completion need only the flags."""

from __future__ import annotations

import argparse
from typing import Any

from clusterset.model.namespace_map import DNS_LABEL
from controller_runtime.process.flags import add_flag, duration

TIMEOUT = 10.0
"""Seconds to wait for each response."""
_IMPERSONATION = {"as": "as_user", "as-groups": "as_group", "as-uid": "as_uid"}
"""Field of a kubeconfig's user → attribute of the flag."""
_NO_LIMIT = 365 * 86400.0
"""Seconds that stand for no limit, so that no code needs to handle a missing timeout."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare kubectl's flags for the connection to the upper cluster."""
    add_flag(parser, "--kubeconfig FILE", "upper cluster's ($KUBECONFIG, ~/.kube/config, in-cluster)")
    add_flag(parser, "--context CONTEXT", "context of the kubeconfig (its current-context)")
    add_impersonation(parser)
    add_request_timeout(parser)


def add_impersonation(parser: argparse.ArgumentParser) -> None:
    """Declare ``--as``, ``--as-group`` and ``--as-uid``, which apply to the upper cluster."""
    add_flag(parser, "--as USER", "user to impersonate in the upper cluster", dest="as_user")
    add_flag(
        parser,
        "--as-group GROUP",
        "group to impersonate; may be given more than once",
        action="append",
        default=[],
    )
    add_flag(parser, "--as-uid UID", "UID to impersonate")


def impersonation(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a kubeconfig's user that ``--as``, ``--as-group`` and ``--as-uid`` set; empty for other commands."""
    given = vars(options)
    fields = {name: given.get(attribute) for name, attribute in _IMPERSONATION.items()}
    return {name: value for name, value in fields.items() if value}


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
