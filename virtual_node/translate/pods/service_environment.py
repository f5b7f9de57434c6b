"""Service variables, as a kubelet gives them to containers: ``REDIS_SERVICE_HOST`` and the Docker links.

A kubelet knows its own cluster's Services; a mirrored pod wants the upper ones, at addresses that lead somewhere
from where it runs. What the user sets (``env``, ``envFrom``) wins over these, and they may be used in ``$(…)``.

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
    """The variables that a pod gets.

    Args:
        services: of the pod's namespace, in any order; others are skipped.
        namespace: the pod's.
        links: the pod's enableServiceLinks.
        address: the clusterIP of a Service as it can be reached from the pod; empty: it has none.
        master: host and port of the apiserver that ``KUBERNETES_SERVICE_HOST`` and its kin shall name; None:
            they are left to the lower kubelet, which names the lower cluster's.
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
    """A container with service variables before its own.

    Args:
        container: of the lower pod.
        variables: as ``service_variables`` gives them.
        env_from: names that its ``envFrom`` sources define; they win too.
    """
    own = {variable["name"] for variable in container.get("env") or ()}
    added = [
        {"name": name, "value": value.replace("$(", "$$(")}
        for name, value in variables.items()
        if name not in own and name not in env_from
    ]
    return {**container, "env": [*added, *(container.get("env") or ())]} if added else container


def _variables(name: str, host: str, ports: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    prefix = _shout(name)
    all_ports = list(ports)
    first = all_ports[0]
    variables = {f"{prefix}_SERVICE_HOST": host, f"{prefix}_SERVICE_PORT": str(first["port"])}
    for port in all_ports:
        if port.get("name"):
            variables[f"{prefix}_SERVICE_PORT_{_shout(port['name'])}"] = str(port["port"])
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


def _shout(name: str) -> str:
    return name.upper().replace("-", "_")
