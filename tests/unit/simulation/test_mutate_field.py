"""Whoever changes one field of one of our objects: it is restored, or it is allowed to stay, and nothing else breaks."""

from __future__ import annotations

import pytest

from tests.thorough import seeds, size
from tests.unit.simulation.mutate_field import Mutation, without_mutation, wrong_after

_PARTS = 20
_MUTATIONS = 3
"""Of a part in ``make unit``; each runs the whole script."""


def _one_of_each() -> list[Mutation]:
    """Each field of each resource once, of one object; ``mutate_field`` tries all objects."""
    found: dict[tuple[str, str, str, bool], Mutation] = {}
    for mutation in without_mutation()[1]:
        is_token = "token" in mutation.key
        found.setdefault((mutation.server, mutation.plural, mutation.path, is_token), mutation)
    return list(found.values())


def test_every_kind_of_object_is_mutated():
    """Those that we make in both clusters, and our marks on objects of users."""
    resources = {(mutation.server, mutation.plural) for mutation in _one_of_each()}
    assert resources >= {
        ("upper", "pods"), ("upper", "persistentvolumeclaims"), ("upper", "persistentvolumes"), ("upper", "nodes"),
        ("one", "pods"), ("one", "configmaps"), ("one", "secrets"), ("one", "services"), ("one", "endpointslices"),
        ("one", "persistentvolumeclaims"), ("one", "namespaces"),
    }  # fmt: skip


@pytest.mark.parametrize("part", seeds(1, _PARTS))
def test_a_changed_field_is_restored_or_harmless(part: int):
    """The process is up for every other field, and killed for two seconds while the rest is changed."""
    mutations = _one_of_each()[part::_PARTS]
    for number, mutation in enumerate(mutations[: size(_MUTATIONS, len(mutations))]):
        wrong = wrong_after(mutation, is_up=number % 2 == 0)
        assert not wrong, "\n".join(wrong)
