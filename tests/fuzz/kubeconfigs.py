"""Kubeconfigs: files that other programs or people may have written."""

from __future__ import annotations

import asyncio
import os
import tempfile
from unittest import mock

from controller_runtime.auth import kubeconfig
from controller_runtime.auth.exec_credentials import Plugin
from controller_runtime.errors import ConfigError
from tests.fuzz.target import Target

PLUGIN = Plugin(
    command="plugin", source="kubeconfig: users[a].user", args=[], env={},
    api_version="client.authentication.k8s.io/v1", cluster=None, install_hint="",
)  # fmt: skip
_SEED = b"""apiVersion: v1
kind: Config
current-context: c
clusters:
- name: k
  cluster: {server: "https://127.0.0.1:6443", tls-server-name: x, proxy-url: "http://127.0.0.1:1", insecure-skip-tls-verify: true}
contexts:
- name: c
  context: {cluster: k, user: u, namespace: n}
users:
- name: u
  user: {token: abc, username: a, password: b, as: other, as-groups: [g], as-user-extra: {k: [v]}}
"""


def _load(raw: bytes) -> None:
    if b"exec" in raw or b"auth-provider" in raw:
        return  # runs programs and connects to servers: not for random input
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        with mock.patch.dict(os.environ):
            os.environ.pop("KUBECONFIG", None)
            assert asyncio.run(kubeconfig.load(file.name, in_cluster=False)).server


TARGETS = (Target("kubeconfig", _load, (_SEED,), (ConfigError,), seconds=5),)  # read once, at start
