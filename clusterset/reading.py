"""Reads the configuration file of all programs, which describes the lower clusters.

Every program reads the same document with its own structure, and ignores the settings of the other programs. The forms
of earlier releases (``FORMER_KINDS``, former names of fields) and of tensile-kube are read, too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from clusterset.config import API_VERSION, KIND, ClusterSet
from controller_runtime.apimachinery.decoding import (
    convert,
    decode_yaml,
    field_name,
    former_name,
    with_current_names,
)
from controller_runtime.apimachinery.readable import guess
from controller_runtime.auth.kubeconfig_file import at_home
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import read_text
from controller_runtime.process.program import load

T = TypeVar("T", bound=ClusterSet)
_PROGRAMS = ("virtual_node.config.types:Config", "multi_scheduler.config:Config")
"""The structures of the programs that read the file. They are imported by name, because no program may import another. The
annotator reads the file as the multi-scheduler does."""
_SHOWN = 20
"""Maximum number of problems in an error message."""
_SCHEDULER_KIND = "KubeSchedulerConfiguration"
_SCHEDULER_FIELDS = """
    algorithmSource bindTimeoutSeconds clientConnection delayCacheUntilActive disablePreemption enableContentionProfiling
    enableProfiling extenders failureDomains hardPodAffinitySymmetricWeight healthzBindAddress leaderElection
    metricsBindAddress parallelism percentageOfNodesToScore plugins podInitialBackoffSeconds podMaxBackoffSeconds schedulerName
"""
"""Fields of every version of KubeSchedulerConfiguration that concern kube-scheduler only."""
_TENSILE_PLUGIN = "multi-scheduler"
_UNKNOWN_FIELD = re.compile(r"unknown field `(.*?)`(?: - at |$)", re.DOTALL)
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>.*?)(?P<map>\[\.\.\.\].*)?`$")
"""Location in msgspec's error message, up to the first map. With ``key``, the error concerns the map's keys."""
_OTHER_KEYS = "keys that are not text"
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")


@dataclass(frozen=True, slots=True)
class ConfigFile(Generic[T]):
    """The configuration file as one program reads it."""

    kind: type[T]
    """Structure with the program's own settings."""
    problems: Callable[[T], Iterable[str]]
    """Returns the problems of a configuration beyond its types, each as ``field: problem``."""
    paths: Sequence[str] = ()
    """The program's own fields that are paths."""

    def load(self, path: str | Path) -> T:
        """Return the configuration in a file. Relative paths in it are relative to the directory of the file.

        Raises:
            ConfigError: the file cannot be read or is invalid, as for ``parse``.
        """
        return self._placed(Path(path), self.parse(read_text("--config", path), source=str(path)))

    def parse(self, text: str, *, source: str = "config") -> T:
        """Return the configuration in a YAML or JSON text.

        Raises:
            ConfigError: the text is invalid; the error names the source and the field.
        """
        try:
            document = decode_yaml(text)
        except ValueError as error:
            raise ConfigError(f"{source}: not YAML: {error}") from None
        if not isinstance(document, dict):
            raise ConfigError(f"{source}: expected a mapping with apiVersion, kind and clusters")
        try:
            parsed = convert(self._own_part(document), self.kind)
        except ValueError as error:
            raise ConfigError(f"{source}: {error}") from None
        if problems := list(self.problems(parsed)):
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise ConfigError(f"{source}: " + "; ".join(problems[:_SHOWN]) + more)
        return parsed

    def load_usable(self, path: str | Path) -> T:
        """Return a file's configuration without unknown fields and values of a wrong type.

        The program must not run with it, because it differs from what was configured. Values that contradict each
        other are kept. If the file cannot be read or is not YAML, the result is the default configuration.
        """
        try:
            document = decode_yaml(read_text("--config", path))
            if not isinstance(document, dict):
                return self.kind()
            document = with_current_names(_without_fields_of_others(document, self.kind), self.kind)
        except (ConfigError, ValueError):
            return self.kind()
        while True:
            try:
                return self._placed(Path(path), msgspec.convert(document, self.kind))
            except msgspec.ValidationError as error:
                if not _drop(document, str(error)):
                    return self.kind()

    def _own_part(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a document in the current form, without the settings of other programs.

        Raises:
            ValueError: a top-level field is unknown to all programs, or tensile-kube's arguments are invalid.
        """
        if document.get("kind") == _SCHEDULER_KIND or "pluginConfig" in document:
            return _from_tensile(document)
        own = _without_fields_of_others(document, self.kind)
        for name in with_current_names(own, self.kind):
            if isinstance(name, str) and name not in self.kind.__struct_encode_fields__:
                known = [field_name(field) for field in _known_fields()]
                raise ValueError(f"unknown field `{name}`{guess(name, known)}")
        return own

    def _placed(self, file: Path, parsed: T) -> T:
        """Resolve relative paths against the file's directory, in place; return ``parsed``."""
        for field in self.paths:
            setattr(parsed, field, _beside(file, getattr(parsed, field)))
        if (profiles := parsed.cluster_profiles) is not None:
            profiles.providers_file = _beside(file, profiles.providers_file)
        for cluster in parsed.clusters:
            cluster.kubeconfig = _beside(file, cluster.kubeconfig)
        return parsed


def _beside(config_file: Path, path: str) -> str:
    if not path:
        return path
    expanded = at_home(path)
    return str(expanded if expanded.is_absolute() else config_file.parent / expanded)


@functools.cache
def _known_fields() -> Sequence[str]:
    """Return the top-level fields of all programs."""
    structures: list[Any] = list(map(load, _PROGRAMS))
    return list(dict.fromkeys(field for structure in structures for field in structure.__struct_fields__))


def _without_fields_of_others(document: dict[str, Any], kind: type[ClusterSet]) -> dict[str, Any]:
    """Return a document without the top-level fields that only other programs use."""
    spellings = (field_name, former_name)
    own = {spelled(field) for field in kind.__struct_fields__ for spelled in spellings}
    if document.keys() <= own:
        return document  # without the imports of the other programs' settings, which take time at each start
    others = [field for field in _known_fields() if field not in kind.__struct_fields__]
    ignored = {spelled(field) for field in others for spelled in spellings}
    return {name: value for name, value in document.items() if name not in ignored}


def _from_tensile(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert tensile-kube's KubeSchedulerConfiguration; its plug-in's arguments list the lower clusters.

    They are in ``pluginConfig``, or since v1beta1 in ``profiles[].pluginConfig``. Settings of kube-scheduler are ignored.

    Raises:
        ValueError: a field is unknown or of a wrong type, profiles contradict each other, or no cluster is listed.
    """
    known = ["apiVersion", "kind", "pluginConfig", "profiles", *_SCHEDULER_FIELDS.split()]
    for field in document:
        if field not in known:
            raise ValueError(f"unknown field `{field}` of a {_SCHEDULER_KIND}{guess(str(field), known)}")
    entries: dict[str, Any] = {}
    for place, plugin in _plugins(document):
        arguments = plugin.get("args")
        clusters = arguments.get("cluster_configuration") if isinstance(arguments, dict) else None
        if plugin.get("name") != _TENSILE_PLUGIN and not clusters:
            continue
        if not isinstance(clusters, dict):
            raise ValueError(f"{place}.args.cluster_configuration: expected an object")
        for name, entry in clusters.items():
            if entries.setdefault(name, entry) != entry:
                raise ValueError(
                    f"{place}.args.cluster_configuration.{name}: differs from that of another profile"
                )
    if entries:
        listed = [_tensile_cluster(name, entry) for name, entry in entries.items()]
        return {"apiVersion": API_VERSION, "kind": KIND, "clusters": listed}
    raise ValueError(
        "neither pluginConfig nor profiles[].pluginConfig has an entry with args.cluster_configuration, which lists the "
        "lower clusters; a configuration without it is for kube-scheduler"
    )


def _plugins(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the entries of ``pluginConfig`` of a document and of its profiles, each after its place.

    Raises:
        ValueError: a list or an entry has a wrong type.
    """
    profiles = _objects(document, "profiles", "")
    for owner, prefix in [(document, ""), *((profile, f"{place}.") for place, profile in profiles)]:
        yield from _objects(owner, "pluginConfig", prefix)


def _objects(owner: Mapping[str, Any], field: str, prefix: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects in a list, each after its place; an absent list is empty."""
    items = owner.get(field)
    if items is not None and not isinstance(items, list):
        raise ValueError(f"{prefix}{field}: expected a list")
    for number, item in enumerate(items or ()):
        if not isinstance(item, dict):
            raise ValueError(f"{prefix}{field}[{number}]: expected an object")
    return [(f"{prefix}{field}[{number}]", item) for number, item in enumerate(items or ())]


def _tensile_cluster(name: str, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or not isinstance(entry.get("kube_config"), str):
        raise ValueError(f"cluster_configuration.{name}.kube_config: the path of a kubeconfig is required")
    return {
        "name": str(entry.get("name") or name),
        "kubeconfig": entry["kube_config"],
        "server": str(entry.get("kube_master") or ""),
        # In tensile-kube the key of a cluster is its clusterID and, by convention, the name of its virtual node.
        "nodes": [{"name": name}],
        # tensile-kube has no setting for adoption, and uses every existing namespace.
        "namespaces": {"adopt": True},
    }


def _drop(document: Any, complaint: str) -> bool:
    """Delete the part of a document that a msgspec error names; report whether something was deleted.

    ``$.a[0].b[...]`` is an entry of a map for which msgspec does not give the key, so the whole map is
    deleted.
    """
    place, unknown = _PLACE.search(complaint), _UNKNOWN_FIELD.search(complaint)
    steps: list[str | int] = [
        int(step[2]) if step[2] else step[1] for step in _STEP.finditer(place["path"] if place else "")
    ]
    if place is not None and place["key"]:
        steps.append(_OTHER_KEYS)
    elif unknown is not None and not (place is not None and place["map"]):
        steps.append(unknown[1])
    if not steps:
        return False
    for step in steps[:-1]:
        document = document[step]
    if steps[-1] is _OTHER_KEYS:
        for key in [key for key in document if not isinstance(key, str)]:
            del document[key]
        return True
    if isinstance(document, dict) and steps[-1] not in document:
        return False  # the name contains msgspec's quotation marks and was cut
    del document[steps[-1]]
    return True
