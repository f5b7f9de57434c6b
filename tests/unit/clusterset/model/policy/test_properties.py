"""Properties of the policy for every pod: levels contain each other, and violations name fields of the pod."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterset.model.policy.rules import NOT_SET
from tests.generated_pods import generate
from tests.unit.clusterset.model.policy.pods import judge

_STEP = re.compile(r"([^.\[]+)(?:\[([^\]]*)\])?\.?")
_NAMES = ("name", "key", "containerPort")


def _follow(value: Any, field: str) -> tuple[Any, bool]:
    """The innermost value that a field's path leads to, and whether the path ends there."""
    for match in _STEP.finditer(field):
        name, key = match[1], match[2]
        if not isinstance(value, dict) or name not in value:
            return value, False
        value = value[name]
        if key is not None and isinstance(value, dict):
            value = value[key]
        elif key is not None:
            value = next(one for one in value if any(str(one.get(what)) == key for what in _NAMES))
    return value, True


@given(st.integers(0, 2**32))
def test_what_a_level_allows_the_laxer_levels_allow(seed):
    """Restricted within baseline within privileged."""
    body = generate(Random(seed))
    if not judge(body, preset="restricted"):
        assert not judge(body, preset="baseline")
    assert not judge(body, preset="privileged")


@given(st.integers(0, 2**32))
def test_a_violation_names_a_field_of_the_pod(seed):
    """Or one that is missing from a container of the pod."""
    body = generate(Random(seed))
    before = json.dumps(body)
    for violation in judge(body, preset="restricted"):
        value, is_there = _follow(body, violation.field)
        assert is_there or violation.value == NOT_SET, violation
        if is_there and isinstance(value, str | bool):
            assert violation.value in {str(value), str(value).lower()}
    assert json.dumps(body) == before, "nothing is changed"
