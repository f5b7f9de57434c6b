"""``check``: whether pods of a lower cluster find others by upper names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from clusterset.model.namespace_map import NamespaceConfig
from virtual_node.commands.check import CheckResult, rows
from virtual_node.examine.facts import NAMES, Names
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.rights.name_server import Installed, NameServer, corefile
from virtual_node.translate.pods import dns

PREFIX = NamespaceConfig(prefix="up-")
MADE = corefile(NameServer("tokyo", "id", "cluster.local", "cluster.local", "10.97.0.10", PREFIX))


def _row(
    namespaces: NamespaceConfig,
    installed: Sequence[Installed] = (),
    *,
    servers: Sequence[str] = (),
    lower_domain: str = "",
) -> CheckResult:
    """Return the row about names."""
    lower = View("tokyo")
    names = Names(
        cluster="tokyo",
        renamed=dns.renamed(namespaces),
        domain=lower_domain,
        installed=installed,
        servers=servers,
        namespaces=namespaces,
    )
    lower.put(NAMES, names)
    (row,) = rows(Snapshot(datetime.now(UTC), lowers=[lower]))
    return row


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
    found = _row(namespaces, lower_domain=lower_domain)
    assert found.ok
    assert found.detail.startswith(f"warning: {warning}" if warning else "pods find others")
    assert ("lower-cluster dns tokyo --client-kubeconfig LOWER_ADMIN.yaml --apply" in found.fix) == bool(
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
    found = _row(PREFIX, installed, servers=["10.97.0.53"])
    assert found.ok is ok
    assert detail in found.detail
    assert bool(found.fix) is not ok
