"""``check``: whether pods of a lower cluster find others by upper names."""

from __future__ import annotations

import pytest

from clusterset.config import Cluster, DNSConfig
from clusterset.model.namespace_map import NamespaceConfig
from virtual_node.commands.check.dns import verdict
from virtual_node.commands.common.name_server import Installed, NameServer, corefile

PREFIX = NamespaceConfig(prefix="up-")
MADE = corefile(NameServer("tokyo", "id", "cluster.local", "cluster.local", "10.97.0.10", PREFIX))


@pytest.mark.parametrize(
    ("namespaces", "lower_domain", "warning"),
    [
        (NamespaceConfig(), "", ""),
        (NamespaceConfig(), "cluster.local", ""),
        (NamespaceConfig(map={"shop": "shop"}), "", ""),
        (PREFIX, "", "namespaces.prefix changes the namespaces, "),
        (NamespaceConfig(map={"shop": "store"}), "", "namespaces.map changes the namespaces, "),
        (NamespaceConfig(), "app.pre", "the domain there is app.pre, "),
        (
            NamespaceConfig(prefix="up-", map={"shop": "store"}), "app.pre",
            "namespaces.prefix and namespaces.map change the namespaces and the domain there is app.pre, ",
        ),
    ],
)  # fmt: skip
def test_different_names_without_a_name_server_are_a_warning(
    namespaces: NamespaceConfig, lower_domain: str, warning: str
):
    """The row names the settings and the command that creates one."""
    found = verdict(
        Cluster("tokyo", namespaces=namespaces), [], upper_domain="cluster.local", lower_domain=lower_domain
    )
    assert found.ok
    assert found.detail.startswith(warning or "pods find others")
    assert ("lower-cluster dns tokyo --client-kubeconfig LOWER_ADMIN.yaml --apply" in found.next) == bool(
        warning
    )


@pytest.mark.parametrize(
    ("installed", "ok", "detail"),
    [
        ([], True, "10.97.0.53: not made by virtual-node lower-cluster dns"),
        ([Installed("virtual-node/x", "10.97.0.53", 2, MADE)], True, "10.97.0.53 (virtual-node/x) answers"),
        ([Installed("virtual-node/x", "10.97.0.53", 0, MADE)], False, "has no ready pod"),
        ([Installed("virtual-node/x", "10.97.0.53", 2, MADE.replace("up-", "q-"))], False, "former namespaces"),
        ([Installed("virtual-node/x", "10.97.0.99", 0, MADE)], True, "not made by"),
    ],
)  # fmt: skip
def test_a_name_server_that_does_not_answer_is_a_failure(
    installed: list[Installed], *, ok: bool, detail: str
):
    """New pods would resolve no name, or the names of a former configuration."""
    cluster = Cluster("tokyo", namespaces=PREFIX, dns=DNSConfig(servers=["10.97.0.53"]))
    found = verdict(cluster, installed, upper_domain="cluster.local", lower_domain="")
    assert found.ok is ok
    assert detail in found.detail
    assert bool(found.next) is not ok
