"""The name server for the names of the upper cluster. tests/field/test_names.py runs it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from clusterset.model.namespace_map import NamespaceConfig, NamespaceMap
from virtual_node.rights.name_server import Installed, NameServer, corefile, object_name, objects

SAME = NameServer("tokyo", "id", "cluster.local", "cluster.local", "10.97.0.10")
PREFIX = replace(SAME, namespaces=NamespaceConfig(prefix="up-"))
MAPPED = replace(SAME, namespaces=NamespaceConfig(map={"shop": "store", "up-x": "foo"}))
BOTH = replace(SAME, namespaces=NamespaceConfig(prefix="up-", map={"z": "y", "up-x": "foo"}))
DOMAIN = replace(SAME, upper_domain="app.pre")
ALL = replace(BOTH, upper_domain="app.pre")
_RULE = re.compile(r"rewrite stop name regex (\S+) (\S+)(.*)")
_ANSWER = re.compile(r" answer (name|value) (\S+) (\S+)")


def rewritten(pattern: str, target: str, name: str) -> str | None:
    """Return the name that CoreDNS's plugin ``rewrite`` makes of a name; None: the pattern does not match."""
    if (found := re.search(pattern, name)) is None:
        return None
    return re.sub(r"\{(\d)\}", lambda group: found[int(group[1])] or "", target)


def asked(server: NameServer, name: str, answer: str = "") -> tuple[str, str]:
    """Return the name that the lower cluster's DNS is asked, and the name that the client reads for its answer."""
    for pattern, target, answers in _RULE.findall(corefile(server)):
        if (lower := rewritten(pattern, target, name)) is not None:
            read = answer or lower
            for part, old, new in reversed(_ANSWER.findall(answers)):
                if part == ("value" if answer else "name"):
                    read = rewritten(old, new, read) or read
            return lower, read
    return name, answer or name


NAMES = [
    (SAME, "api.other.svc.cluster.local.", "api.other.svc.cluster.local."),
    (PREFIX, "api.other.svc.cluster.local.", "api.up-other.svc.cluster.local."),
    (PREFIX, "other.svc.cluster.local.", "up-other.svc.cluster.local."),
    (PREFIX, "db-0.db.shop.svc.cluster.local.", "db-0.db.up-shop.svc.cluster.local."),
    (PREFIX, "_http._tcp.db.shop.svc.cluster.local.", "_http._tcp.db.up-shop.svc.cluster.local."),
    (PREFIX, "10-1-0-5.shop.pod.cluster.local.", "10-1-0-5.up-shop.pod.cluster.local."),
    (PREFIX, "api.up-x.svc.cluster.local.", "api.up-up-x.svc.cluster.local."),
    (PREFIX, "www.example.com.svc.cluster.local.", "www.example.up-com.svc.cluster.local."),
    (PREFIX, "www.example.com.cluster.local.", "www.example.com.cluster.local."),
    (PREFIX, "www.example.com.", "www.example.com."),
    (MAPPED, "api.shop.svc.cluster.local.", "api.store.svc.cluster.local."),
    (MAPPED, "api.up-x.svc.cluster.local.", "api.foo.svc.cluster.local."),
    (MAPPED, "api.other.svc.cluster.local.", "api.other.svc.cluster.local."),
    (BOTH, "api.z.svc.cluster.local.", "api.y.svc.cluster.local."),
    (BOTH, "api.y.svc.cluster.local.", "api.up-y.svc.cluster.local."),
    (BOTH, "api.up-x.svc.cluster.local.", "api.foo.svc.cluster.local."),
    (DOMAIN, "api.other.svc.app.pre.", "api.other.svc.cluster.local."),
    (DOMAIN, "api.other.svc.cluster.local.", "api.other.svc.cluster.local."),
    (DOMAIN, "www.example.com.app.pre.", "www.example.com.cluster.local."),
    (ALL, "api.z.svc.app.pre.", "api.y.svc.cluster.local."),
    (ALL, "api.y.svc.app.pre.", "api.up-y.svc.cluster.local."),
    (SAME, "kubernetes.default.svc.cluster.local.", "kubernetes.default.svc.cluster.local."),
    (PREFIX, "kubernetes.default.svc.cluster.local.", "kubernetes.default.svc.cluster.local."),
    (PREFIX, "web.default.svc.cluster.local.", "web.up-default.svc.cluster.local."),
    (DOMAIN, "kubernetes.default.svc.app.pre.", "kubernetes.default.svc.cluster.local."),
]


@pytest.mark.parametrize(("server", "name", "lower"), NAMES)
def test_an_upper_name_is_asked_by_its_lower_name(server: NameServer, name: str, lower: str):
    """The client reads its own name in the answer, because resolvers ignore answers to other names."""
    assert asked(server, name) == (lower, name)


@pytest.mark.parametrize(
    ("server", "answer", "read"),
    [
        (PREFIX, "db-0.db.up-shop.svc.cluster.local.", "db-0.db.shop.svc.cluster.local."),
        (PREFIX, "web.theirs.svc.cluster.local.", "web.theirs.svc.cluster.local."),
        (BOTH, "db-0.db.y.svc.cluster.local.", "db-0.db.z.svc.cluster.local."),
        (BOTH, "db-0.db.up-y.svc.cluster.local.", "db-0.db.y.svc.cluster.local."),
        (ALL, "db-0.db.foo.svc.cluster.local.", "db-0.db.up-x.svc.app.pre."),
    ],
)
def test_a_reverse_lookup_returns_the_upper_name(server: NameServer, answer: str, read: str):
    """Names of namespaces that are not for the upper cluster stay."""
    assert asked(server, "5.0.1.10.in-addr.arpa.", answer) == ("5.0.1.10.in-addr.arpa.", read)


@pytest.mark.parametrize(
    ("namespaces", "name"),
    [
        (NamespaceConfig(map={"shop": "store"}, allowed=["shop"]), "api.store.svc.cluster.local."),
        (NamespaceConfig(prefix="up-", map={"shop": "up-x"}, allowed=["shop"]), "api.x.svc.cluster.local."),
    ],
)
def test_a_name_does_not_lead_to_another_upper_namespace_that_is_mapped_there(
    namespaces: NamespaceConfig, name: str
):
    """An upper namespace that is not mirrored has no Services in the lower cluster."""
    server = replace(SAME, namespaces=namespaces)
    assert asked(server, name)[0] == "not-mirrored.svc.cluster.local."
    assert asked(server, "api.shop.svc.cluster.local.")[1] == "api.shop.svc.cluster.local."


def test_a_namespace_whose_lower_name_has_a_hash_is_not_found():
    """A client would otherwise reach a namespace of another owner that has this name."""
    long = "a" * 61
    assert NamespaceMap("up-")(long) != f"up-{long}"
    assert asked(PREFIX, f"api.{long}.svc.cluster.local.")[0] == "too-long.svc.cluster.local."


@pytest.mark.parametrize("server", [PREFIX, MAPPED, BOTH, DOMAIN, ALL])
def test_a_changed_configuration_makes_the_name_server_outdated(server: NameServer):
    """Its own configuration does not, also if the lower domain is only in the Corefile."""
    found = Installed("virtual-node/x", "10.97.0.53", 2, corefile(server))
    own, domain = server.namespaces, server.upper_domain
    assert not found.is_outdated(own, upper_domain=domain, lower_domain="unknown")
    changed = NamespaceConfig(prefix="q-", map=own.map)
    assert found.is_outdated(changed, upper_domain=domain, lower_domain="cluster.local")


def test_each_upper_and_lower_cluster_has_a_name_server_of_its_own():
    """Several may be in the same namespace."""
    assert len({object_name("a", "tokyo"), object_name("b", "tokyo"), object_name("a", "paris")}) == 3
    kinds = [body["kind"] for body in objects(PREFIX, namespace="virtual-node")]
    assert kinds == ["ConfigMap", "Service", "Deployment", "PodDisruptionBudget"]
    assert len({body["metadata"]["name"] for body in objects(PREFIX, namespace="virtual-node")}) == 1
