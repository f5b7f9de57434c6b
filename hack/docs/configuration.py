"""``docs/reference/configuration.md``: every field of the YAML file, read from the structures that decode it."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

import multi_scheduler.config
import virtual_node.config.types
from clusterset.config import FORMER_KINDS, KIND, ClusterSet, UsageConfig
from clusterset.model.autoscaling import Autoscaling
from clusterset.model.overrides import ContainerPatch, EnvSource, Override, Toleration
from clusterset.model.policy.config import Policy, Rules
from clusterset.model.policy.rules import DEFAULT_PRESET, PRESETS, field_of
from controller_runtime.process.settings import attribute_docstrings
from hack.docs import markdown

_INTRODUCTION = f"""# Configuration file

The file of `--config` has kind `{KIND}`. `virtual-node`, `virtual-node-multi-scheduler` and
`virtual-node-annotator` read the same file, and each ignores the settings of the others. Unknown fields and values out of range are errors. Times
are in seconds. Relative kubeconfig paths are relative to the file. `virtual-node check --config FILE` checks a file and
the clusters that it names.

All programs also read the kinds of earlier releases ({" and ".join(f"`{kind}`" for kind in FORMER_KINDS)}), names of
fields with acronyms in lower case (`clientCaFile` for `clientCAFile`), and a KubeSchedulerConfiguration of tensile-kube
with `pluginConfig[].args.cluster_configuration`."""

_ABOUT: dict[type[msgspec.Struct], tuple[str, str]] = {
    ClusterSet: ("The lower clusters", "All programs use these settings."),
    virtual_node.config.types.Config: (
        "Settings of virtual-node",
        """The process reads the file again every two seconds. A change of `clusters` takes effect at once: new lower
clusters start, removed lower clusters stop, changed ones restart, and the others continue. Another change takes effect at
the next start. A file with an error changes nothing. A flag overrides its environment variable, the variable overrides the
file, and the file overrides the default. Flags that describe one lower cluster, such as `--nodename`, have no effect with
the file.""",
    ),
    multi_scheduler.config.Config: (
        "Settings of virtual-node-multi-scheduler and virtual-node-annotator",
        "The processes read the file at start. The annotator uses only `usage`.",
    ),
}
"""Structure → heading of its section, and text below the heading."""

_WORDS = {
    "api_version": "Always this.",
    "kind": "Always this, or a kind of an earlier release.",
    "address": "Address to listen on.",
    "name": "Its name; in logs, metrics and labels.",
    "clusters": "The lower clusters.",
    "agents": "The agents, with their weights.",
    "server": "Overrides the kubeconfig's URL.",
    "context": "The kubeconfig's context. Empty: its current one.",
    "kubeconfig": "Path of the kubeconfig.",
    "key": "Key of the taint.",
    "value": "Value of the taint.",
    "effect": "NoSchedule, NoExecute or PreferNoSchedule.",
    "tls_private_key_file": "Private key of `tlsCertFile`.",
    "Cluster.node_selector": "Short for `nodes[].nodeSelector`.",
    "Cluster.labels": "Short for `nodes[].labels`.",
    "Cluster.taints": "Short for `nodes[].taints`.",
    "Cluster.capacity": "Short for `nodes[].capacity`.",
    "Cluster.port": "Short for `nodes[].port`.",
    "Cluster.node_ip": "Short for `nodes[].nodeIP`.",
    "Cluster.provider_id": "Short for `nodes[].providerID`.",
    "Cluster.exclude_from_load_balancers": "Short for `nodes[].excludeFromLoadBalancers`.",
}
"""Descriptions of fields without a docstring, by name or by structure and name."""

_DOCUMENTED_ONCE: dict[type[msgspec.Struct], str] = {Policy: "clusters[].policy.", Rules: ""}
"""Large structure that is used in several places → path of its only table; empty: the page refers to Policy's."""

_FIRST_PLACE: dict[type[msgspec.Struct], str] = {
    Autoscaling: "clusters[].autoscaling",
    Override: "clusters[].overrides[]",
    UsageConfig: "clusters[].usage",
    ContainerPatch: "clusters[].overrides[].patch.spec.containers[]",
}
"""Structure → the place that has its table; later places refer to it."""

_OF_KUBERNETES = (EnvSource, Toleration)
"""Structures without a table, because they are those of the Kubernetes API."""

_PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", Any: "any"}


def render() -> str:
    """Return the page."""
    parts = [markdown.note(), _INTRODUCTION]
    seen: set[type[msgspec.Struct]] = set()
    for root, (heading, about) in _ABOUT.items():
        parts += [f"## {heading}", about, *_sections(root, "", seen)]
    return markdown.page(parts)


def paths(root: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield camelCase path and description of every field of a structure and of its nested structures."""
    told = attribute_docstrings(root)
    for field in msgspec.structs.fields(root):
        path = f"{prefix}{field.encode_name}"
        yield path, meaning(root, field, told)
        nested = _struct_in(field.type)
        if nested is not None:
            yield from paths(nested, f"{path}{_brackets(field.type)}.")


def meaning(root: type[msgspec.Struct], one: msgspec.structs.FieldInfo, told: Mapping[str, str]) -> str:
    """Return a field's description: its docstring, else its entry in ``_WORDS``, else the docstring of its type."""
    if one.name in told:
        return markdown.prose(told[one.name])
    for key in (f"{root.__name__}.{one.name}", one.name):
        if key in _WORDS:
            return _WORDS[key]
    nested = _struct_in(one.type)
    return markdown.prose((nested.__doc__ or "").split("\n\n")[0]) if nested is not None else ""


def _sections(root: type[msgspec.Struct], prefix: str, seen: set[type[msgspec.Struct]]) -> Iterator[str]:
    told = attribute_docstrings(root)
    fields = msgspec.structs.fields(root)
    if root is not ClusterSet and issubclass(root, ClusterSet):
        fields = tuple(field for field in fields if field.name not in ClusterSet.__struct_fields__)
    if prefix:
        yield f"### `{prefix.rstrip('.')}`"
        yield markdown.prose(root.__doc__ or "")
    if root in _DOCUMENTED_ONCE and prefix != _DOCUMENTED_ONCE[root]:
        yield f"Its fields are those of [`{_DOCUMENTED_ONCE[Policy].rstrip('.')}`](#clusterspolicy)."
        return
    if root in _FIRST_PLACE and root in seen:
        place = _FIRST_PLACE[root]
        yield f"Its fields are those of [`{place}`](#{''.join(filter(str.isalpha, place)).lower()})."
        return
    seen.add(root)
    yield markdown.table(
        ("field", "type", "default", "meaning"),
        (
            (
                markdown.code(prefix + field.encode_name),
                type_name(field.type),
                _default(field),
                meaning(root, field, told),
            )
            for field in fields
        ),
    )
    if root is Policy:
        yield _presets()
    for field in fields:
        nested = _struct_in(field.type)
        if nested is not None and nested not in _OF_KUBERNETES:
            yield from _sections(nested, f"{prefix}{field.encode_name}{_brackets(field.type)}.", seen)


def _presets() -> str:
    """Return the table of what each preset of a policy allows."""
    rows = (
        (markdown.code(field_of(rule)), *(_allowed(PRESETS[preset][rule]) for preset in PRESETS))
        for rule in PRESETS[DEFAULT_PRESET]
    )
    return "What each preset allows:\n\n" + markdown.table(("rule", *PRESETS), rows)


def _allowed(value: Any) -> str:
    if isinstance(value, bool):
        return markdown.code(str(value).lower())
    return ", ".join(map(markdown.code, value)) or "none"


def type_name(kind: Any) -> str:
    """Return a type in terms that an author of YAML knows."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [
            f"{sign} {value:.17g}"
            for meta in arguments[1:]
            if isinstance(meta, msgspec.Meta)
            for sign, value in ((">", meta.gt), ("≥", meta.ge), ("≤", meta.le))
            if value is not None
        ]
        return " ".join([type_name(arguments[0]), ", ".join(limits)]).strip()
    if origin is Literal:
        return " or ".join(markdown.code(str(argument)) for argument in arguments if argument != "")
    if origin in {Union, types.UnionType}:
        return " or ".join(type_name(argument) for argument in arguments if argument is not type(None))
    if origin is list:
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"map to {type_name(arguments[1])}"
    return _PLAIN.get(kind, "object")


def _default(one: msgspec.structs.FieldInfo) -> str:
    if one.required:
        return "required"
    value = one.default
    if value is msgspec.NODEFAULT:
        value = one.default_factory() if callable(one.default_factory) else None
    if isinstance(value, msgspec.Struct) or value in (None, "", [], {}):
        return ""
    if isinstance(value, float):
        return markdown.code(f"{value:g}")
    return markdown.code(msgspec.json.encode(msgspec.to_builtins(value)).decode().strip('"'))


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for arg in get_args(kind) if (found := _struct_in(arg)) is not None), None)


def _brackets(kind: Any) -> str:
    if get_origin(kind) is list:
        return "[]"
    return next((found for arg in get_args(kind) if (found := _brackets(arg))), "")
