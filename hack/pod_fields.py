"""``python -m hack.pod_fields``: write the fields of a pod's spec in each tested Kubernetes release to ``tests/pod_fields.txt``.

It reads the OpenAPI schema in the module ``k8s.io/kubernetes`` of each release, which Go downloads. The list has a line for
each type and field. ``tests/pod_schema.py`` reads it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSIONS = ("v1.34.2", "v1.35.4", "v1.36.3", "v1.37.2")
"""Releases from the oldest to the newest. A field without a release in the list is in all of them."""
FILE = Path(__file__).resolve().parents[1] / "tests" / "pod_fields.txt"
_SCHEMA = "api/openapi-spec/swagger.json"
_CORE = "io.k8s.api.core.v1."
_SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "object",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
}
_Types = dict[str, dict[str, str]]
"""The kind of each field, by type: ``string``, ``[]string``, ``map string``, ``[]Container``."""


def main() -> None:
    """Write the list."""
    releases = {version.rpartition(".")[0].removeprefix("v"): _types(version) for version in VERSIONS}
    FILE.write_text(render(releases), encoding="utf-8")
    print(f"{FILE} written")


def render(releases: Mapping[str, _Types]) -> str:
    """Return the list: each type, then its fields with their kinds, and the releases that have them unless all do."""
    lines = [f"# Written by python -m hack.pod_fields from Kubernetes {', '.join(VERSIONS)}."]
    for name in sorted({name for types in releases.values() for name in types}):
        lines.append(name)
        fields = {field for types in releases.values() for field in types.get(name, {})}
        for field in sorted(fields):
            having = [release for release, types in releases.items() if field in types.get(name, {})]
            kind = releases[having[-1]][name][field]
            known = [release for release, types in releases.items() if name in types]
            note = "" if having == known == list(releases) else f" ({' '.join(having)})"
            lines.append(f"  {field}: {kind}{note}")
    return "\n".join(lines) + "\n"


def _types(version: str) -> _Types:
    schema = json.loads((_download(version) / _SCHEMA).read_bytes())["definitions"]
    types: _Types = {}
    waiting = [f"{_CORE}PodSpec"]
    while waiting:
        reference = waiting.pop()
        if (name := _short(reference)) in types:
            continue
        types[name] = {}
        for field, value in schema[reference]["properties"].items():
            types[name][field], others = _kind(value)
            waiting += others
    return types


def _kind(value: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the kind of a field, and the references to types in it."""
    for begin, inner in (("[]", value.get("items")), ("map ", value.get("additionalProperties"))):
        if inner:
            kind, others = _kind(inner)
            return begin + kind, others
    if reference := value.get("$ref", "").removeprefix("#/definitions/"):
        return (_SCALARS[reference], []) if reference in _SCALARS else (_short(reference), [reference])
    return value["type"], []


def _short(reference: str) -> str:
    return reference.rpartition(".")[2]


def _download(version: str) -> Path:
    with tempfile.TemporaryDirectory() as directory:
        command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"]
        found = subprocess.run(command, cwd=directory, check=True, capture_output=True).stdout
    return Path(json.loads(found)["Dir"])


if __name__ == "__main__":
    main()
