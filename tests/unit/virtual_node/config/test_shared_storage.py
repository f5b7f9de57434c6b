"""Shared storage in the configuration: errors name the field."""

from __future__ import annotations

import pytest

from controller_runtime.errors import ConfigError
from virtual_node.config import file

_HEAD = "apiVersion: virtual-node.io/v1alpha1\nkind: VirtualNodeConfiguration\nclusters: [{name: a, kubeconfig: k, volumes: {shared: "


@pytest.mark.parametrize(
    ("shared", "problem"),
    [
        (
            "[{name: nas, drivers: [a]}, {name: nas, drivers: [b]}]",
            r"volumes.shared\[1\].name: 'nas' is there twice",
        ),
        (
            "[{name: x, drivers: [a]}, {name: y, drivers: [b, a]}]",
            r"volumes.shared\[1\].drivers: 'a' is in another entry",
        ),
        ("[{name: nas, drivers: []}]", r"shared\[0\].drivers"),
        ("[{name: 'a/b', drivers: [a]}]", r"shared\[0\].name"),
        ("[{name: nas, drivers: [a], secret: {name: s}}]", r"namespace"),
    ],
)
def test_refuses_contradictions_and_invalid_names(shared: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        file.parse(f"{_HEAD}{shared}}}}}]\n")
