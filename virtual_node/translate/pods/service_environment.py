"""Service variables that a kubelet sets in containers: ``REDIS_SERVICE_HOST`` and the Docker links.

A kubelet knows only the Services of its own cluster, but a mirrored pod needs the upper Services, at
addresses that the pod can reach. Variables that the user sets (``env``, ``envFrom``) override these, and can
refer to them as ``$(…)``.

Names of Services may begin with a digit from Kubernetes 1.37 on (KEP-5311), names of variables from 1.32 on (KEP-4369).

Source: kubelet ``pkg/kubelet/envvars``, ``getServiceEnvVarMap``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from clusterset.model.declared_features import minor_version
from clusterset.model.pod.api_access import SERVICE as API_SERVER
from clusterset.model.pod.conditions import CONTAINER_KINDS
from controller_runtime.apimachinery.translation_budget import TranslationBudget

_LOWER_LINK = "KUBERNETES_PORT_443_TCP"
"""Prefix of the variables that a lower kubelet sets for the port of its own API server."""
_SOURCES = (("configMapRef", "ConfigMap"), ("secretRef", "Secret"))
_DIGITS_SINCE = (1, 32)
"""The first version of an API server that accepts variables whose names begin with a digit."""
_FRAME = len('{"name":"","value":""},')
_SUFFIX = len("_PORT_80_TCP_ADDR")
_PRODUCT = "Service variables of all ports of the namespace's Services, in each container"
ADVICE = "set enableServiceLinks: false in the pod, or use fewer Service ports or containers"
_FROM_PRODUCT = "Service variables compared with all keys of envFrom in each container"
_FROM_ADVICE = "set enableServiceLinks: false in the pod, or use fewer envFrom sources or containers"
Source = tuple[str, str, str]
"""Kind, name and prefix of an ``envFrom`` source."""


def allows_digits(lower_version: str) -> bool:
    """Report whether an API server of that version accepts variables whose names begin with a digit; empty: unknown."""
    version = minor_version(lower_version)
    return version is not None and version >= _DIGITS_SINCE


def service_variables(
    services: Iterable[Mapping[str, Any]],
    *,
    namespace: str,
    links: bool,
    address: Callable[[Mapping[str, Any]], str],
    master: tuple[str, int] | None = None,
    digits: bool = True,
    budget: TranslationBudget | None = None,
) -> dict[str, str]:
    """Return the service variables of a pod by name.

    Args:
        services: Services in the order of their names; each is read only once. Services of other namespaces are
            skipped.
        namespace: the pod's namespace.
        links: the pod's enableServiceLinks.
        address: returns the clusterIP at which the pod can reach a Service; empty: there is none.
        master: host and port of the API server for ``KUBERNETES_SERVICE_HOST`` and related variables. None:
            the lower kubelet sets them to the lower cluster's API server.
        digits: whether names may begin with a digit. Otherwise these Services have no variables, because the API server
            would refuse the pod.
        budget: of the pod. It is only read, because ``add_variables`` subtracts the variables of each container. None:
            a new one.

    Raises:
        TooLargeError: the variables exceed the budget.
    """
    budget = (budget or TranslationBudget()).copy()
    variables: dict[str, str] = {}
    if master is not None:
        host, port = master
        ports = [{"name": "https", "port": port, "protocol": "TCP"}]
        of_master = _variables(API_SERVER[1], host, ports, budget)
        link = f"KUBERNETES_PORT_{port}_TCP"
        variables |= of_master | {
            _LOWER_LINK + name.removeprefix(link): value
            for name, value in of_master.items()
            if name.startswith(link)
        }
    if not links:
        return variables
    for service in services:
        metadata, spec = service["metadata"], service.get("spec") or {}
        if metadata["namespace"] != namespace or (namespace, metadata["name"]) == API_SERVER:
            continue
        if not digits and metadata["name"][:1].isdigit():
            continue
        host = address(service)
        if host and host != "None" and spec.get("ports"):
            variables |= _variables(metadata["name"], host, spec["ports"], budget)
    return variables


def add_variables(
    spec: dict[str, Any],
    variables: Mapping[str, str],
    keys_of: Callable[[str, str], Collection[str]],
    budget: TranslationBudget | None = None,
) -> None:
    """Add service variables before the containers' own variables, in place.

    Containers share the entries of the variables.

    Args:
        spec: lists of containers by kind: a lower pod's spec, or the debug containers to add to a running pod.
        variables: the result of ``service_variables``.
        keys_of: returns the data keys of a ConfigMap or Secret, by kind and name; called once for each object that
            an ``envFrom`` references.
        budget: of the pod; None: a new one.

    Raises:
        TooLargeError: the variables exceed the budget.
    """
    if not variables:
        return
    budget = budget or TranslationBudget()
    entries = {name: {"name": name, "value": value.replace("$(", "$$(")} for name, value in variables.items()}
    sizes = {name: _FRAME + len(name) + len(entry["value"]) for name, entry in entries.items()}
    size = sum(sizes.values())
    containers = [container for kind in CONTAINER_KINDS for container in spec.get(kind) or ()]
    defined = _defined(containers, entries, keys_of, budget)

    def extended(container: Mapping[str, Any]) -> Mapping[str, Any]:
        own = container.get("env") or ()
        hidden = {variable["name"] for variable in own if variable["name"] in entries}
        for source in _env_from(container):
            budget.work(len(defined[source]), _FROM_PRODUCT, _FROM_ADVICE)
            hidden |= defined[source]
        if hidden:
            budget.work(len(entries), _PRODUCT, ADVICE)
        budget.add(size - sum(sizes[name] for name in hidden), _PRODUCT, ADVICE)
        added = (
            [entry for name, entry in entries.items() if name not in hidden] if hidden else entries.values()
        )
        return {**container, "env": [*added, *own]} if added else container

    for kind in CONTAINER_KINDS:
        if kind in spec:
            spec[kind] = list(map(extended, spec[kind]))


def _defined(
    containers: Iterable[Mapping[str, Any]],
    names: Collection[str],
    keys_of: Callable[[str, str], Collection[str]],
    budget: TranslationBudget,
) -> dict[Source, frozenset[str]]:
    """Return which of ``names`` each ``envFrom`` source defines. Keeps the keys of only one object in memory at a time."""
    prefixes: dict[tuple[str, str], dict[str, None]] = {}
    for container in containers:
        for kind, name, prefix in _env_from(container):
            prefixes.setdefault((kind, name), {})[prefix] = None
    defined: dict[Source, frozenset[str]] = {}
    for (kind, name), found in prefixes.items():
        budget.work(len(found) * len(names), _FROM_PRODUCT, _FROM_ADVICE)
        keys = keys_of(kind, name)
        budget.work(len(keys), _FROM_PRODUCT, _FROM_ADVICE)
        for prefix in found:
            start = len(prefix)
            defined[kind, name, prefix] = frozenset(
                variable for variable in names if variable.startswith(prefix) and variable[start:] in keys
            )
    return defined


def _env_from(container: Mapping[str, Any]) -> Iterator[Source]:
    for source in container.get("envFrom") or ():
        for field, kind in _SOURCES:
            if reference := source.get(field):
                yield kind, reference.get("name", ""), source.get("prefix") or ""


def _variables(
    name: str, host: str, ports: Iterable[Mapping[str, Any]], budget: TranslationBudget
) -> dict[str, str]:
    prefix = _variable_prefix(name)
    all_ports = list(ports)
    # Four or five variables per port, two of them with the host. Their names contain more than the prefix.
    budget.work(len(all_ports), _PRODUCT, ADVICE)
    size = 4 * (len(prefix) + _FRAME + _SUFFIX) + 2 * len(host)
    budget.add(len(all_ports) * size, _PRODUCT, ADVICE)
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
