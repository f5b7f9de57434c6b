"""DeschedulerPolicy files: sigs.k8s.io/descheduler's v1alpha1 (a map of strategies) and v1alpha2 (profiles).

Both become the same ``Policy``. A field that cannot be applied is an error with the field's name. If such a field
were ignored, users could not distinguish a policy without effect from a policy that finds no pods to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from controller_runtime.apimachinery import decoding
from controller_runtime.apimachinery.decoding import decode_yaml
from controller_runtime.apimachinery.readable import guess
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import read_text
from descheduler.config import fields

_GROUP = "descheduler/"
EVICTOR = "DefaultEvictor"
_EVICTOR_FIELDS = {
    "evictLocalStoragePods": "local_storage",
    "evictSystemCriticalPods": "system_critical",
    "ignorePvcPods": "ignore_pvc",
}
_COUNTS = {
    "maxNoOfPodsToEvictPerNode": "max_per_node",
    "maxNoOfPodsToEvictPerNamespace": "max_per_namespace",
    "maxNoOfPodsToEvictTotal": "max_total",
}
_V1ALPHA2_TOP = {"apiVersion", "kind", "nodeSelector", "profiles", *_COUNTS}
_V1ALPHA1_TOP = _V1ALPHA2_TOP - {"profiles", "maxNoOfPodsToEvictTotal"} | {"strategies", *_EVICTOR_FIELDS}
_EVICTOR_ARGS = {"nodeSelector", "evictFailedBarePods", "nodeFit", *_EVICTOR_FIELDS}
NESTED_PARAMS = ("podLifeTime", "removeDuplicates", "nodeResourceUtilizationThresholds")
_PRIORITY_PARAMS = {"thresholdPriority": "value", "thresholdPriorityClassName": "name"}
_ONLY_UPSTREAM = frozenset(
    {
        "HighNodeUtilization",
        "RemoveFailedPods",
        "RemovePodsHavingTooManyRestarts",
        "RemovePodsViolatingInterPodAntiAffinity",
        "RemovePodsViolatingNodeAffinity",
        "RemovePodsViolatingNodeTaints",
        "RemovePodsViolatingTopologySpreadConstraint",
    }
)

Params = TypeVar("Params", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """A strategy to run, and its parameters: as in the file, or converted to the strategy's type (``convert``)."""

    name: str
    params: Any
    where: str
    """Path of the field or flag that holds the parameters, for errors."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Content of a policy file."""

    strategies: tuple[StrategyConfig, ...] = ()
    node_selector: str = ""
    eviction: Mapping[str, bool | int] = field(default_factory=dict)
    """Fields of ``EvictionOptions`` that the file has, by name."""


def load(path: str, *, known: Mapping[str, str]) -> Policy:
    """Read a policy file.

    Args:
        path: YAML or JSON.
        known: registered name of each strategy, by name and by alias.

    Raises:
        ConfigError: the file is invalid; the message names the file, the field and what to write there.
    """
    text = read_text("--policy-config-file", path)
    try:
        document = decode_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    try:
        return parse(document, known=known)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(document: Any, *, known: Mapping[str, str]) -> Policy:
    """Read a decoded policy document.

    Raises:
        ConfigError: the policy is invalid; names the field.
    """
    if not isinstance(document, dict):
        raise ConfigError("the policy is empty: write apiVersion, kind and strategies or profiles")
    if document.get("kind") != "DeschedulerPolicy":
        raise ConfigError(f"kind: {document.get('kind')!r}: write DeschedulerPolicy")
    match document.get("apiVersion"):
        case "descheduler/v1alpha1":
            return _v1alpha1(document, known)
        case "descheduler/v1alpha2":
            return _v1alpha2(document, known)
        case other:
            raise ConfigError(f"apiVersion: {other!r}: write {_GROUP}v1alpha1 or {_GROUP}v1alpha2")


def convert(params: Mapping[str, Any], kind: type[Params], *, where: str) -> Params:
    """Return a strategy's parameters as its parameter type.

    Raises:
        ConfigError: a parameter is invalid; names the field within ``where``.
    """
    try:
        return decoding.convert(dict(params), kind, where=where)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _v1alpha1(document: dict[str, Any], known: Mapping[str, str]) -> Policy:
    fields.only(document, _V1ALPHA1_TOP, "")
    strategies = []
    for name, entry in fields.mapping(document.get("strategies"), "strategies").items():
        where = f'strategies["{name}"]'
        entry = fields.mapping(entry, where)  # noqa: PLW2901 - the same entry, checked
        fields.only(entry, {"enabled", "weight", "params"}, where)
        if not fields.boolean(entry.get("enabled", False), f"{where}.enabled"):
            continue
        registered = _registered(name, where, known)
        params = _flat(fields.mapping(entry.get("params"), f"{where}.params"))
        strategies.append(StrategyConfig(registered, params, f"{where}.params"))
    return Policy(tuple(strategies), _selector(document), {**_counts(document), **_evictor(document, "")})


def _flat(params: dict[str, Any]) -> dict[str, Any]:
    """Return v1alpha1 parameters with the members of nested structs at the top level, as in upstream 0.18."""
    flat = {name: value for name, value in params.items() if name not in NESTED_PARAMS}
    for name in NESTED_PARAMS:
        flat |= fields.mapping(params.get(name), name)
    threshold = {new: flat.pop(old) for old, new in _PRIORITY_PARAMS.items() if old in flat}
    if threshold:
        flat["priorityThreshold"] = threshold
    return flat


def _v1alpha2(document: dict[str, Any], known: Mapping[str, str]) -> Policy:
    fields.only(document, _V1ALPHA2_TOP, "")
    profiles = document.get("profiles", [])
    if not isinstance(profiles, list):
        raise ConfigError("profiles: write a list")
    strategies: list[StrategyConfig] = []
    selector = _selector(document)
    evictor = _counts(document)
    for number, entry in enumerate(profiles):
        where = f"profiles[{number}]"
        profile = fields.mapping(entry, where)
        fields.only(profile, {"name", "pluginConfig", "plugins"}, where)
        configs = _plugin_configs(profile, where)
        if EVICTOR in configs:
            args, at = configs[EVICTOR]
            fields.only(args, _EVICTOR_ARGS, at)
            evictor |= _evictor(args, at)
            if args.get("nodeSelector"):
                selector = str(args["nodeSelector"])
        for name, at in _enabled(profile, where):
            registered = _registered(name, at, known)
            params, params_at = configs.get(name, ({}, f"{where}.pluginConfig[{name}].args"))
            strategies.append(StrategyConfig(registered, params, params_at))
    return Policy(tuple(strategies), selector, evictor)


def _plugin_configs(profile: dict[str, Any], where: str) -> dict[str, tuple[dict[str, Any], str]]:
    found: dict[str, tuple[dict[str, Any], str]] = {}
    listed = profile.get("pluginConfig") or []
    if not isinstance(listed, list):
        raise ConfigError(f"{where}.pluginConfig: write a list")
    for number, entry in enumerate(listed):
        at = f"{where}.pluginConfig[{number}]"
        config = fields.mapping(entry, at)
        fields.only(config, {"name", "args"}, at)
        name = config.get("name")
        if not isinstance(name, str):
            raise ConfigError(f"{at}.name: write a plugin's name")
        args = {
            key: value
            for key, value in fields.mapping(config.get("args"), f"{at}.args").items()
            if key not in {"apiVersion", "kind"}
        }
        found[name] = (args, f"{at}.args")
    return found


def _enabled(profile: dict[str, Any], where: str) -> list[tuple[str, str]]:
    """Return the names of the plugins that a profile enables, each with the path of its field."""
    found = []
    plugins = fields.mapping(profile.get("plugins"), f"{where}.plugins")
    fields.only(
        plugins,
        {"deschedule", "balance", "filter", "preEvictionFilter", "preevictionfilter", "sort"},
        f"{where}.plugins",
    )
    for point in ("deschedule", "balance"):
        at = f"{where}.plugins.{point}"
        entry = fields.mapping(plugins.get(point), at)
        fields.only(entry, {"enabled", "disabled"}, at)
        enabled = entry.get("enabled") or []
        if not isinstance(enabled, list):
            raise ConfigError(f"{at}.enabled: write a list of plugin names")
        found += [(str(name), f"{at}.enabled[{number}]") for number, name in enumerate(enabled)]
    return found


def _registered(name: str, where: str, known: Mapping[str, str]) -> str:
    registered = known.get(name)
    if registered is not None:
        return registered
    names = ", ".join(sorted(set(known))) + guess(name, known)
    if name in _ONLY_UPSTREAM:
        raise ConfigError(
            f"{where}: {name} is not a strategy of this descheduler, which moves pods between virtual nodes; "
            f"disable it here and run sigs.k8s.io/descheduler too. Known are: {names}"
        )
    raise ConfigError(f"{where}: there is no strategy {name!r}; known are {names}")


def _selector(document: dict[str, Any]) -> str:
    selector = document.get("nodeSelector")
    if selector is not None and not isinstance(selector, str):
        raise ConfigError("nodeSelector: write a label selector as text, such as type=virtual-kubelet")
    return selector or ""


def _counts(document: dict[str, Any]) -> dict[str, int]:
    counts = {name: fields.count(document, key) for key, name in _COUNTS.items()}
    return {name: value for name, value in counts.items() if value is not None}


def _evictor(document: dict[str, Any], where: str) -> dict[str, bool]:
    return {
        name: fields.boolean(document[key], fields.join(where, key))
        for key, name in _EVICTOR_FIELDS.items()
        if document.get(key) is not None
    }
