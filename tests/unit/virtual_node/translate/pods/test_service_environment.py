"""Service variables are those of an upper kubelet."""

from __future__ import annotations

from typing import Any

import pytest

from tests import objects
from virtual_node.translate.pods.service_environment import add_variables, allows_digits, service_variables


def _service(
    name: str, *, ip: str = "10.0.0.5", namespace: str = "shop", ports: Any = None
) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}] if ports is None else ports
    return objects.service(name, ports, address=ip, namespace=namespace)


def _variables(*services: dict[str, Any], links: bool = True, **more: Any) -> dict[str, str]:
    return service_variables(
        services, namespace="shop", links=links, address=lambda one: str(one["spec"]["clusterIP"]), **more
    )


def test_host_port_and_docker_links():
    """Dashes become underscores, names become capitals."""
    assert _variables(_service("redis-primary")) == {
        "REDIS_PRIMARY_SERVICE_HOST": "10.0.0.5",
        "REDIS_PRIMARY_SERVICE_PORT": "80",
        "REDIS_PRIMARY_SERVICE_PORT_HTTP": "80",
        "REDIS_PRIMARY_PORT": "tcp://10.0.0.5:80",
        "REDIS_PRIMARY_PORT_80_TCP": "tcp://10.0.0.5:80",
        "REDIS_PRIMARY_PORT_80_TCP_PROTO": "tcp",
        "REDIS_PRIMARY_PORT_80_TCP_PORT": "80",
        "REDIS_PRIMARY_PORT_80_TCP_ADDR": "10.0.0.5",
    }


def test_several_ports():
    """The first port is the service's own; unnamed ports have no variable of their own."""
    ports = [{"port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    found = _variables(_service("dns", ports=ports))
    assert found["DNS_PORT"] == "udp://10.0.0.5:53"
    assert found["DNS_SERVICE_PORT_DNS_TCP"] == "53"
    assert found["DNS_PORT_53_TCP"] == "tcp://10.0.0.5:53"


def test_ipv6_addresses_are_bracketed_in_urls_only():
    """As net.JoinHostPort does."""
    found = _variables(_service("six", ip="fd00::1"))
    assert found["SIX_SERVICE_HOST"] == "fd00::1"
    assert found["SIX_PORT"] == "tcp://[fd00::1]:80"


def test_headless_and_other_namespaces_services_have_none():
    assert _variables(_service("a", ip="None"), _service("b", ip=""), _service("c", namespace="x")) == {}


@pytest.mark.parametrize(
    ("version", "allowed"),
    [("v1.31.9", False), ("v1.32.0", True), ("v1.37.1-gke.5", True), ("", False), ("next", False)],
)
def test_services_with_a_digit_have_variables_only_where_the_api_server_accepts_them(version, allowed):
    """Otherwise it would refuse all pods of the namespace because of the Service ``1st`` of a newer upper cluster."""
    found = _variables(_service("1st"), _service("second"), digits=allows_digits(version))
    assert ("1ST_SERVICE_HOST" in found) is allowed
    assert "SECOND_SERVICE_HOST" in found


def test_links_can_be_disabled():
    """enableServiceLinks: false."""
    assert _variables(_service("redis"), links=False) == {}


def test_the_apiserver_is_named_only_if_configured():
    """Otherwise the lower kubelet sets its own, with links or not."""
    assert "KUBERNETES_SERVICE_HOST" not in _variables(_service("redis"))
    found = _variables(links=False, master=("10.200.1.1", 6443))
    assert found["KUBERNETES_SERVICE_HOST"] == "10.200.1.1"
    assert found["KUBERNETES_SERVICE_PORT"] == found["KUBERNETES_SERVICE_PORT_HTTPS"] == "6443"
    # A kubelet would set those of its own cluster.
    assert found["KUBERNETES_PORT_443_TCP"] == found["KUBERNETES_PORT"] == "tcp://10.200.1.1:6443"
    assert found["KUBERNETES_PORT_443_TCP_ADDR"] == "10.200.1.1"
    assert found["KUBERNETES_PORT_6443_TCP_ADDR"] == "10.200.1.1"


def test_user_variables_win():
    """Env and envFrom come after service variables in a kubelet's order."""
    container = {
        "name": "c",
        "env": [{"name": "A", "value": "user"}],
        "envFrom": [{"prefix": "MY_", "configMapRef": {"name": "more"}}, {"secretRef": {"name": "secret"}}],
    }
    spec: dict[str, Any] = {"containers": [container], "initContainers": [{"name": "i"}]}
    keys = {("ConfigMap", "more"): {"C", "D"}, ("Secret", "secret"): {"E"}}
    add_variables(
        spec, {"A": "1", "B": "2", "C": "3", "MY_C": "4", "E": "5"}, lambda kind, name: keys[kind, name]
    )
    own = [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}, {"name": "A", "value": "user"}]
    assert spec["containers"] == [{**container, "env": own}]
    assert [variable["name"] for variable in spec["initContainers"][0]["env"]] == ["A", "B", "C", "MY_C", "E"]


def test_references_in_values_are_not_expanded():
    spec: dict[str, Any] = {"containers": [{"name": "c"}]}
    add_variables(spec, {"A": "$(B)"}, lambda _kind, _name: ())
    assert spec["containers"][0]["env"] == [{"name": "A", "value": "$$(B)"}]


def test_containers_share_the_entries():
    """The memory of the variables does not grow with the containers."""
    spec: dict[str, Any] = {"containers": [{"name": "a"}, {"name": "b"}]}
    add_variables(spec, {"A": "1"}, lambda _kind, _name: ())
    first, second = spec["containers"]
    assert first["env"][0] is second["env"][0]


def test_an_unchanged_container_is_not_copied():
    container = {"name": "c"}
    spec = {"containers": [container]}
    add_variables(spec, {}, lambda _kind, _name: ())
    assert spec["containers"][0] is container
