"""Service variables that a kubelet sets in containers: ``REDIS_SERVICE_HOST`` and the Docker links.

A kubelet knows only the Services of its own cluster, but a mirrored pod needs the upper Services, at
addresses that the pod can reach. Variables that the user sets (``env``, ``envFrom``) override these, and can
refer to them as ``$(…)``.

Source: kubelet ``pkg/kubelet/envvars``, ``getServiceEnvVarMap``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

MASTER = ("default", "kubernetes")


def service_variables(
    services: Iterable[Mapping[str, Any]],
    *,
    namespace: str,
    links: bool,
    address: Callable[[Mapping[str, Any]], str],
    master: tuple[str, int] | None = None,
) -> dict[str, str]:
    """Return the service variables of a pod by name.

    Args:
        services: Services in any order; Services of other namespaces are skipped.
        namespace: the pod's namespace.
        links: the pod's enableServiceLinks.
        address: returns the clusterIP at which the pod can reach a Service; empty: there is none.
        master: host and port of the API server for ``KUBERNETES_SERVICE_HOST`` and related variables. None:
            the lower kubelet sets them to the lower cluster's API server.
    """
    variables: dict[str, str] = {}
    if master is not None:
        host, port = master
        ports = [{"name": "https", "port": port, "protocol": "TCP"}]
        variables |= _variables("kubernetes", host, ports)
    if not links:
        return variables
    found = sorted(
        (service for service in services if service["metadata"]["namespace"] == namespace),
        key=lambda service: str(service["metadata"]["name"]),
    )
    for service in found:
        metadata, spec = service["metadata"], service.get("spec") or {}
        if (metadata["namespace"], metadata["name"]) == MASTER:
            continue
        host = address(service)
        if host and host != "None" and spec.get("ports"):
            variables |= _variables(metadata["name"], host, spec["ports"])
    return variables


def with_variables(
    container: Mapping[str, Any], variables: Mapping[str, str], env_from: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return a container with service variables before its own variables.

    Args:
        container: a container of the lower pod.
        variables: the result of ``service_variables``.
        env_from: names of variables that the container's ``envFrom`` sources define; these are not
            overridden.
    """
    own = {variable["name"] for variable in container.get("env") or ()}
    added = [
        {"name": name, "value": value.replace("$(", "$$(")}
        for name, value in variables.items()
        if name not in own and name not in env_from
    ]
    return {**container, "env": [*added, *(container.get("env") or ())]} if added else container


def _variables(name: str, host: str, ports: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    prefix = _variable_prefix(name)
    all_ports = list(ports)
    first = all_ports[0]
    variables = {f"{prefix}_SERVICE_HOST": host, f"{prefix}_SERVICE_PORT": str(first["port"])}
    for port in all_ports:
        if port.get("name"):
            variables[f"{prefix}_SERVICE_PORT_{_variable_prefix(port['name'])}"] = str(port["port"])
    joined = f"[{host}]" if ":" in host else host
    for number, port in enumerate(all_ports):
        protocol = port.get("protocol") or "TCP"
        url = f"{protocol.lower()}://{joined}:{port['port']}"
        if number == 0:
            variables[f"{prefix}_PORT"] = url
        link = f"{prefix}_PORT_{port['port']}_{protocol.upper()}"
        variables |= {
            link: url,
            f"{link}_PROTO": protocol.lower(),
            f"{link}_PORT": str(port["port"]),
            f"{link}_ADDR": host,
        }
    return variables


def _variable_prefix(name: str) -> str:
    return name.upper().replace("-", "_")
