"""The schema of a cluster's ``config`` and the program accept the same configurations.

Names and types only: dependencies between fields, and Kubernetes' rules for names, are checked by the program
alone.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterset.config import Cluster
from controller_runtime.apimachinery.decoding import convert, former_name
from hack.chart import schema
from tests.json_schema import validators
from tests.thorough import IS_THOROUGH
from tests.unit.charts.rendering import CASES, configuration, objects
from virtual_node.config.file import validate
from virtual_node.config.types import Config

SCHEMA = json.loads(schema.FILE.read_text(encoding="utf-8"))
TEXTS = st.sampled_from(["", "a", "In", "NoSchedule", "Delete", "Upper", "baseline", "10%", "hostIPC", "CSR"])
ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 70_000),
    st.floats(-1, 2, allow_nan=False),
    TEXTS,
    st.lists(TEXTS, max_size=2),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
)
"""Values of every YAML type."""


@functools.cache
def _validator(definition: str) -> Any:
    whole = {"definitions": SCHEMA["definitions"], "$ref": f"#/definitions/{definition}"}
    return validators().Draft7Validator(whole)


_STEP = 29
"""In ``make unit``, one document of so many: no multiple of the number of values of a field."""
_OF_TYPES = re.compile(r"enableControllers: |\.podSelector|\.taints: effect")
"""Errors of the program besides types that the schema knows, too."""


def _documents(definition: str) -> st.SearchStrategy[Any]:
    """Return a strategy for documents of a definition: mostly valid fields and values, and some wrong ones."""
    return _object(SCHEMA["definitions"][definition], depth=4)


def _object(part: dict[str, Any], *, depth: int) -> st.SearchStrategy[Any]:
    known = {name: _value(field, depth=depth - 1) for name, field in part["properties"].items() if field}
    required = {name: known.pop(name) for name in part.get("required", ())}
    right = st.fixed_dictionaries(required, optional=known)
    misspelt = st.dictionaries(st.sampled_from([*known, *required, "lables", "Labels"]), ANY, max_size=1)
    # Most values are valid, because with many fields one would be wrong in nearly every document.
    return st.one_of(right, right, right, st.builds(lambda one, other: {**one, **other}, right, misspelt))


def _value(field: dict[str, Any], *, depth: int) -> st.SearchStrategy[Any]:
    if depth <= 0:
        return ANY
    if "$ref" in field:
        return _object(SCHEMA["definitions"][field["$ref"].rpartition("/")[2]], depth=depth)
    if "anyOf" in field:
        return st.one_of(*(_value(one, depth=depth) for one in field["anyOf"]))
    if "enum" in field:
        return st.sampled_from(field["enum"])
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return st.one_of(*(_of_type(kind, field, depth=depth) for kind in kinds))


def _of_type(kind: str, field: dict[str, Any], *, depth: int) -> st.SearchStrategy[Any]:
    match kind:
        case "object":
            values = _value(field["additionalProperties"], depth=depth - 1) if len(field) > 1 else ANY
            return st.dictionaries(TEXTS, values, max_size=2)
        case "array":
            return st.lists(_value(field["items"], depth=depth), max_size=2)
        case "string":
            return TEXTS
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "integer":
            return st.sampled_from([0, 1, 9, 10, 100, 65_535, 65_536])
        case _:
            return st.one_of(st.integers(0, 100), st.floats(0, 100))


def _program_takes(document: dict[str, Any]) -> bool:
    # Helm writes 5.0 as 5, and msgspec accepts no 5.0 for an integer.
    written = json.loads(
        json.dumps(document), parse_float=lambda text: float(text) if float(text) % 1 else int(float(text))
    )
    try:
        parsed = convert(written, Config)
    except ValueError:
        return False
    return not [problem for problem in validate(parsed) if _OF_TYPES.search(problem)]


def _single(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield documents of a definition with one field besides the required ones: each field with values of every kind."""
    required = dict.fromkeys(part.get("required", ()), "In")
    yield {**required, "lables": {}}
    for name, field in part["properties"].items():
        yield from ({**required, name: value} for value in _values(field))


def _values(field: Any) -> Iterator[Any]:
    yield from (None, True, "a", "In", "", [], ["a"], [1], {}, {"a": "b"}, {"a": 1}, {"a": {}}, 1.5)
    yield from (-1, 0, 1, 9, 10, 65_535, 65_536)
    if field is False:  # a name that must not be there
        return
    yield from field.get("enum", ())
    for inner in (field, *field.get("anyOf", ())):
        if "$ref" in inner:
            yield from _single(SCHEMA["definitions"][inner["$ref"].rpartition("/")[2]])
        if isinstance(inner.get("items"), dict):
            yield from ([value] for value in _values(inner["items"]))
        if isinstance(inner.get("additionalProperties"), dict):
            yield from ({"a": value} for value in _values(inner["additionalProperties"]))


@pytest.mark.parametrize("definition", ["Cluster", "Config"])
def test_the_schema_and_the_program_agree_on_every_field(definition):
    """Each field with values of every type, at the ends of ranges, and with every allowed name."""
    found = {True: 0, False: 0}
    documents = [*_single(SCHEMA["definitions"][definition])]
    for document in documents if IS_THOROUGH else documents[::_STEP]:
        if document.keys() & {"name", "kubeconfig", "apiVersion", "kind", "clusters", "clusterProfiles"}:
            continue
        whole = document if definition == "Config" else {"clusters": [{"name": "a", **document}]}
        accepted = _validator(definition).is_valid(document)
        assert accepted is _program_takes(whole), document
        found[accepted] += 1
    assert min(found.values()) > (100 if IS_THOROUGH else 5)


@settings(deadline=None)
@given(document=_documents("Cluster"))
def test_the_schema_and_the_program_accept_the_same_clusters(document):
    accepted = _validator("Cluster").is_valid(document)
    assert accepted is _program_takes({"clusters": [{"name": "a", **document}]}), document


@settings(deadline=None)
@given(document=_documents("Config"))
def test_the_schema_and_the_program_accept_the_same_process_settings(document):
    """Settings of the whole process; the chart itself adds the clusters."""
    document = {
        key: value for key, value in document.items() if key not in {"apiVersion", "kind", "clusters"}
    }
    assert _validator("Config").is_valid(document) is _program_takes(document), document


@pytest.mark.parametrize("kind", [Cluster, Config])
def test_every_field_of_the_program_is_in_the_schema(kind):
    """A new field of the program can be set in values."""
    known = SCHEMA["definitions"][kind.__name__]["properties"]
    fields = msgspec.structs.fields(kind)
    assert set(known) == {name for field in fields for name in (field.encode_name, former_name(field.name))}


@pytest.mark.parametrize("case", CASES)
def test_settings_that_the_chart_adds_fit_the_schema(case):
    document = msgspec.yaml.decode(configuration(objects(case)))
    clusters = [
        {key: value for key, value in one.items() if key not in {"name", "kubeconfig"}}
        for one in document.pop("clusters")
    ]
    assert [_validator("Cluster").is_valid(one) for one in clusters] == [True] * len(clusters)
    for field in ("agents", "unknownNodes", "usage", "upperUsage"):
        document.pop(field, None)
    assert _validator("Config").is_valid(document)
