"""The kubelet API of a virtual node: logs and pod lists served, streams spliced to the lower apiserver."""

from __future__ import annotations

from .authentication import Authenticator, UserInfo, load_client_ca
from .authorization import Authorizer
from .backend import Backend, PodTarget
from .server import KubeletServer

__all__ = [
    "Authenticator",
    "Authorizer",
    "Backend",
    "KubeletServer",
    "PodTarget",
    "UserInfo",
    "load_client_ca",
]
