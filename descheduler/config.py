"""The settings of evictions, and DeschedulerPolicy files.

A policy file is sigs.k8s.io/descheduler's v1alpha1 (a map of strategies) or v1alpha2 (profiles). Both become the same
``Policy``. A field that cannot be applied is an error with the field's name. If such a field were ignored, users could not
distinguish a policy without effect from a policy that finds no pods to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from controller_runtime.apimachinery import decoding, matching
from controller_runtime.apimachinery.readable import guess
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import duration, read_text
from controller_runtime.process.settings import Positive, Setting

MOVING = "moving"
"""Title of the flags about moves."""

Count = Annotated[int, Meta(ge=0)]
NO_MOVES = -1
"""A maximum that allows no move; 0 is no limit, as in flags."""


class Limits(msgspec.Struct, kw_only=True):
    """Back-off and maximum of one owner's rounds of moves (``descheduler.memory.history``). Times are in seconds."""

    backoff: Annotated[float, Setting(MOVING, "--backoff D", parse=duration)] = 60.0
    """Time between an owner's first and second round; doubles every round."""
    backoff_maximum: float = 1800.0
    """Longest time between two rounds."""
    rounds: Annotated[int, Setting(MOVING, "--max-deschedules N")] = 5
    """Rounds of moves per owner, after which its pods stay. 0: no limit."""
    window: Annotated[Positive, Setting(MOVING, "--deschedule-window D", parse=duration)] = 7200.0
    """Time without a round after which the owner's rounds are deleted."""


class EvictionOptions(msgspec.Struct, kw_only=True):
    """Which pods may be moved, and how many per pass."""

    dry_run: Annotated[bool, Setting(MOVING, "--dry-run")] = False
    """Move no pods; report planned moves in log and events."""
    local_storage: Annotated[bool, Setting(MOVING, "--evict-local-storage-pods")] = False
    """Also move pods with emptyDir or hostPath volumes."""
    system_critical: bool = False
    ignore_pvc: bool = False
    max_per_node: Annotated[Count, Setting(MOVING, "--max-pods-to-evict-per-node N")] = 0
    """Moves off a node per pass, or per minute without --descheduling-interval. 0: no limit."""
    max_per_namespace: Count = 0
    """Moves out of one namespace per pass. 0: no limit; ``NO_MOVES``: none."""
    max_total: Count = 0
    """Moves per pass. 0: no limit; ``NO_MOVES``: none."""
    make_before_break: Annotated[bool, Setting(MOVING, "--make-before-break")] = True
    """Evict a Ready pod of a Deployment only after its replacement is Ready."""
    wave: Annotated[int, Meta(ge=1), Setting(MOVING, "--pods-per-wave N")] = 20
    """Maximum number of replacements that start at the same time."""
    pass_seconds: float = 60.0
    """Length of a pass in seconds for the three maximums, also for strategies without passes of their own."""
    limits: Limits = msgspec.field(default_factory=Limits)


EVICTOR = "DefaultEvictor"
NESTED_PARAMS = ("podLifeTime", "removeDuplicates", "nodeResourceUtilizationThresholds")
_PRIORITY_PARAMS = {"thresholdPriority": "value", "thresholdPriorityClassName": "name"}
_OPTIONS = {
    "evict_local_storage_pods": "local_storage",
    "evict_system_critical_pods": "system_critical",
    "ignore_pvc_pods": "ignore_pvc",
    "max_no_of_pods_to_evict_per_node": "max_per_node",
    "max_no_of_pods_to_evict_per_namespace": "max_per_namespace",
    "max_no_of_pods_to_evict_total": "max_total",
}
"""Field of a file → field of ``EvictionOptions``."""
DEFAULT_DISABLED: Mapping[str, str] = {
    "PodsWithLocalStorage": "local_storage",
    "SystemCriticalPods": "system_critical",
    "FailedBarePods": "",
}
EXTRA_ENABLED: Mapping[str, str] = {"PodsWithPVC": "ignore_pvc"}
"""Name in ``podProtections`` → field of ``EvictionOptions`` that becomes true; empty: no effect, as ``evictFailedBarePods``.

They replace fields of ``_OPTIONS`` since sigs.k8s.io/descheduler 0.34.
"""
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


class Struct(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of structs read from a policy file."""


class _Document(Struct):
    """Fields of both versions, after apiVersion and kind."""

    node_selector: str | None = None
    max_no_of_pods_to_evict_per_node: Count | None = None
    max_no_of_pods_to_evict_per_namespace: Count | None = None


class _Version1(_Document):
    evict_local_storage_pods: bool | None = None
    evict_system_critical_pods: bool | None = None
    ignore_pvc_pods: bool | None = None
    strategies: dict[str, Any] | None = None
    """Name → ``_Strategy``."""


class _Strategy(Struct):
    enabled: bool = False
    weight: Any = None
    params: dict[str, Any] | None = None


class _PluginSet(Struct):
    enabled: list[Any] | None = None
    disabled: Any = None


class _Plugins(Struct):
    deschedule: _PluginSet | None = None
    balance: _PluginSet | None = None
    filter: Any = None
    pre_eviction_filter: Any = None
    preevictionfilter: Any = None
    sort: Any = None


class _PluginConfig(Struct):
    name: str
    args: dict[str, Any] | None = None


class _Profile(Struct):
    name: Any = None
    plugin_config: list[_PluginConfig] | None = None
    plugins: _Plugins | None = None


class _Version2(_Document):
    max_no_of_pods_to_evict_total: Count | None = None
    profiles: list[_Profile | None] = []


class _Protections(Struct):
    default_disabled: list[str] | None = None
    extra_enabled: list[str] | None = None


class PriorityThreshold(Struct):
    """Pods with this priority or a higher one stay."""

    value: int | None = None
    name: str = ""


class _EvictorArgs(Struct):
    label_selector: dict[str, Any] | None = None
    priority_threshold: PriorityThreshold | None = None
    node_selector: Any = None
    evict_failed_bare_pods: Any = None
    node_fit: Any = None
    evict_local_storage_pods: bool | None = None
    evict_system_critical_pods: bool | None = None
    ignore_pvc_pods: bool | None = None
    pod_protections: _Protections | None = None


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
        document = decoding.decode_yaml(text)
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
            return _v1alpha1(convert(_without_type(document), _Version1, where=""), known)
        case "descheduler/v1alpha2":
            return _v1alpha2(convert(_without_type(document), _Version2, where=""), known)
        case other:
            raise ConfigError(f"apiVersion: {other!r}: write descheduler/v1alpha1 or descheduler/v1alpha2")


def convert(params: Mapping[str, Any], kind: type[Params], *, where: str) -> Params:
    """Return a part of a policy, such as a strategy's parameters, as its type.

    Raises:
        ConfigError: a field is invalid; names the field within ``where``.
    """
    try:
        return decoding.convert(dict(params), kind, where=where)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _without_type(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without apiVersion and kind."""
    return {key: value for key, value in fields.items() if key not in {"apiVersion", "kind"}}


def _v1alpha1(document: _Version1, known: Mapping[str, str]) -> Policy:
    strategies = []
    for name, entry in (document.strategies or {}).items():
        where = f'strategies["{name}"]'
        if entry is not None and not isinstance(entry, dict):
            raise ConfigError(f"{where}: write a mapping")
        strategy = convert(entry or {}, _Strategy, where=where)
        if strategy.enabled:
            params = _flat(strategy.params or {})
            strategies.append(StrategyConfig(_registered(name, where, known), params, f"{where}.params"))
    return Policy(tuple(strategies), document.node_selector or "", _options(document))


def _flat(params: dict[str, Any]) -> dict[str, Any]:
    """Return v1alpha1 parameters with the members of nested structs at the top level, as in upstream 0.18."""
    flat = {name: value for name, value in params.items() if name not in NESTED_PARAMS}
    for name in NESTED_PARAMS:
        nested = params.get(name) or {}
        if not isinstance(nested, dict):
            raise ConfigError(f"{name}: write a mapping")
        flat |= nested
    threshold = {new: flat.pop(old) for old, new in _PRIORITY_PARAMS.items() if old in flat}
    if threshold:
        flat["priorityThreshold"] = threshold
    return flat


def _v1alpha2(document: _Version2, known: Mapping[str, str]) -> Policy:
    strategies: list[StrategyConfig] = []
    selector, options = document.node_selector or "", _options(document)
    for number, profile in enumerate(document.profiles):
        where = f"profiles[{number}]"
        args = {
            config.name: (_without_type(config.args or {}), f"{where}.pluginConfig[{position}].args")
            for position, config in enumerate((profile and profile.plugin_config) or ())
        }
        evictor = _EvictorArgs()
        if EVICTOR in args:
            evictor = convert(args[EVICTOR][0], _EvictorArgs, where=args[EVICTOR][1])
            label_matcher(evictor.label_selector or {}, where=f"{args[EVICTOR][1]}.labelSelector")
            options |= _options(evictor)
            if evictor.pod_protections is not None:
                options |= _protections(evictor.pod_protections, f"{args[EVICTOR][1]}.podProtections")
            selector = str(evictor.node_selector or selector)
        plugins = (profile and profile.plugins) or _Plugins()
        for point, enabling in (("deschedule", plugins.deschedule), ("balance", plugins.balance)):
            for position, name in enumerate((enabling and enabling.enabled) or ()):
                registered = _registered(str(name), f"{where}.plugins.{point}.enabled[{position}]", known)
                params, at = args.get(str(name), ({}, f"{where}.pluginConfig[{name}].args"))
                strategies.append(StrategyConfig(registered, _selecting(params, evictor, where=at), at))
    return Policy(tuple(strategies), selector, options)


def label_matcher(selector: Any, *, where: str) -> matching.Matcher:
    """Return a function that reports whether a label selector matches given labels.

    Raises:
        ConfigError: the selector is invalid or has an unknown field. If the field were ignored, all pods could match.
    """
    try:
        matcher = matching.compile_selector(selector)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if unknown := selector.keys() - {"matchLabels", "matchExpressions"}:
        raise ConfigError(f"{where}.{min(unknown)}: unknown field")
    return matcher


def _selecting(params: dict[str, Any], evictor: _EvictorArgs, *, where: str) -> dict[str, Any]:
    """Return a strategy's parameters with the selection of pods that the evictor makes for all strategies of its profile.

    Raises:
        ConfigError: the strategy's label selector is invalid.
    """
    selecting: dict[str, Any] = {}
    if evictor.priority_threshold is not None:
        selecting["priorityThreshold"] = msgspec.to_builtins(evictor.priority_threshold)
    selecting |= params
    if evictor.label_selector:
        own = params.get("labelSelector") or {}
        label_matcher(own, where=f"{where}.labelSelector")
        selecting["labelSelector"] = (
            matching.conjunction(evictor.label_selector, own) if own else evictor.label_selector
        )
    return selecting


def _options(found: Struct) -> dict[str, bool | int]:
    """Return the fields of ``EvictionOptions`` that a part of a file has, by name.

    In a file, 0 is a maximum that allows no move, as in sigs.k8s.io/descheduler; a missing field is no limit.
    """
    values = {option: getattr(found, name, None) for name, option in _OPTIONS.items()}
    return {
        option: NO_MOVES if value == 0 and not isinstance(value, bool) else value
        for option, value in values.items()
        if value is not None
    }


def _protections(found: _Protections, where: str) -> dict[str, bool]:
    """Return the fields of ``EvictionOptions`` that ``podProtections`` sets, by name.

    Raises:
        ConfigError: a protection is not known, or this descheduler cannot switch it; names the field.
    """
    options = {}
    for field_name, names, known in (
        ("defaultDisabled", found.default_disabled, DEFAULT_DISABLED),
        ("extraEnabled", found.extra_enabled, EXTRA_ENABLED),
    ):
        for position, name in enumerate(names or ()):
            if name not in known:
                raise ConfigError(
                    f"{where}.{field_name}[{position}]: {name!r} is not supported; known are {', '.join(known)}"
                )
            if known[name]:
                options[known[name]] = True
    return options


def _registered(name: str, where: str, known: Mapping[str, str]) -> str:
    """Return the registered name of a strategy; ``name`` may be an alias."""
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
