"""The kubelet API of a virtual node: serves logs, metrics and pod lists; forwards streams to the lower apiserver."""

from __future__ import annotations

from virtual_node.kubelet.auth.authentication import Authenticator, UserInfo, load_client_ca
from virtual_node.kubelet.auth.authorization import Authorizer
from virtual_node.kubelet.base.backend import Backend, PodTarget
from virtual_node.kubelet.server.server import KubeletServer

__all__ = [
    "Authenticator",
    "Authorizer",
    "Backend",
    "KubeletServer",
    "PodTarget",
    "UserInfo",
    "load_client_ca",
]
