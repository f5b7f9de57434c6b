"""The schema of ``descheduler.policy`` and the descheduler accept the same policies."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
import yaml

from controller_runtime.errors import ConfigError
from descheduler import config as policy
from descheduler.strategies import registry
from descheduler.strategies.base import pod_matcher
from hack.chart import schema
from multi_scheduler.agents.fit.agent import FitSettings
from tests.json_schema import validators
from tests.unit.descheduler.policies import KNOWN, TENSILE, V1ALPHA2

SCHEMA = json.loads(schema.FILE.read_text(encoding="utf-8"))
STRATEGIES = registry.strategies()


@cache
def _policy() -> Any:
    return _validator(SCHEMA["properties"]["descheduler"]["properties"]["policy"])


def _validator(part: dict[str, Any]) -> Any:
    return validators().Draft7Validator({**part, "definitions": SCHEMA["definitions"]})


FULL = yaml.safe_load(V1ALPHA2)
OLD = yaml.safe_load(TENSILE)
OLD["strategies"] |= {
    "HighNodeUtilization": {"enabled": False},
    "RemoveDuplicates": {"enabled": True, "params": {"removeDuplicates": {"excludeOwnerKinds": ["Job"]}}},
    "LowNodeUtilization": {
        "enabled": True,
        "params": {"nodeResourceUtilizationThresholds": {"thresholds": {"cpu": 1}}, "thresholdPriority": 5},
    },
    "Unschedulable": {"enabled": True, "params": {"thresholdSeconds": 5, "failures": ["image"]}},
    "StaleCluster": {"enabled": True, "params": {"burst": 1, "labelSelector": {"matchLabels": {"a": "b"}}}},
}


def _program_takes(document: Any) -> bool:
    """Report whether the descheduler accepts a policy: the file, and then each strategy's parameters."""
    try:
        for one in policy.parse(document, known=KNOWN).strategies:
            params = policy.convert(one.params, STRATEGIES[one.name].params_type, where=one.where)
            pod_matcher(params, one.where)
    except ConfigError:
        return False
    return True


def _mutants(document: Any) -> Iterator[Any]:
    """Yield the document with each of its maps and values changed: an unknown name, another type."""

    def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield path
        for key, one in (
            value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
        ):
            yield from places(one, (*path, key))

    for path in places(document, ()):
        changed = copy.deepcopy(document)
        parent: Any = None
        found: Any = changed
        for step in path:
            parent, found = found, found[step]
        if isinstance(found, dict):
            found["misspelt"] = {"enabled": True}
            yield changed
        # A renamed plug-in lacks its parameters, which is more than an error of one field.
        if parent is not None and path[-1] != "name":
            for wrong in ({"odd": 1}, "odd", -1, True, ["odd"]):
                again = copy.deepcopy(document)
                place = again
                for step in path[:-1]:
                    place = place[step]
                place[path[-1]] = wrong
                yield again


@pytest.mark.parametrize("document", [FULL, OLD], ids=["v1alpha2", "v1alpha1"])
def test_the_schema_and_the_descheduler_agree_on_policies(document: dict[str, Any]):
    """A policy with every kind of field, and with one mistake at every place in it."""
    assert _program_takes(document)
    assert [error.message for error in _policy().iter_errors(document)] == []
    found = {True: 0, False: 0}
    differ = []
    for mutant in _mutants(document):
        accepted = _policy().is_valid(mutant)
        found[accepted] += 1
        if accepted is not _program_takes(mutant):
            differ.append((accepted, mutant))
    assert differ == []
    assert min(found.values()) > 5


def test_every_setting_of_the_fit_agent_is_in_the_schema():
    """A new one of the program can be set in values."""
    known = SCHEMA["definitions"]["FitSettings"]["properties"]
    assert set(known) == {field.encode_name for field in msgspec.structs.fields(FitSettings)}
