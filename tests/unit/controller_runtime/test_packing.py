"""Cached objects take less memory, and read as before."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import pytest

from controller_runtime.objects import Object, from_dict
from controller_runtime.packing import Models, Packed, Shared, are_equal, length, plain


def _pod(number: int, *, image: str = "nginx:1.29", phase: str = "Running", owner: str = "web") -> Object:
    """Return a pod of an owner, with a large spec and status; the number makes its names unique."""
    random_text = random.Random(image).choices(string.ascii_letters, k=600)
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{owner}-{number}",
            "generateName": f"{owner}-",
            "namespace": "shop",
            "uid": f"uid-{number}",
            "resourceVersion": str(number),
            "labels": {"app": owner},
            "ownerReferences": [{"kind": "ReplicaSet", "name": owner, "uid": "rs", "controller": True}],
        },
        "spec": {"containers": [{"name": f"main-{number}", "image": image, "env": "".join(random_text)}]},
        "status": {"phase": phase, "message": phase * 60, "podIP": f"10.0.0.{number}"},
    }
    return from_dict(body)


def test_packed_objects_read_as_before():
    """All readers: fields, sizes, memory, JSON, transforms."""
    models = Models()
    for number in range(20):
        before = _pod(number)
        packed = before.packed(models)
        assert packed.to_dict() == before.to_dict()
        assert json.loads(packed.to_json()) == json.loads(before.to_json())
        assert (packed.spec, packed.status) == (before.spec, before.status)
        assert (packed.size, packed.memory, packed.spec_size) == (
            before.size,
            before.memory,
            before.spec_size,
        )
        assert packed.field("spec") == before.spec
        assert packed.field_size("status") == before.field_size("status")
        assert packed.field_keys("spec") == {"containers"}
        assert packed.without("status").to_dict() == before.without("status").to_dict()
        assert packed.with_labels({"a": "b"}).spec == before.spec
        assert packed.controller == before.controller
        assert packed.node_name == before.node_name


def test_objects_are_compared_by_content():
    """Packed with one model, with different models, and not packed."""
    models, others = Models(), Models()
    _pod(1).packed(models)
    _pod(2).packed(others)
    pods = [_pod(7), _pod(7).packed(models), _pod(7).packed(others)]
    for pod in pods:
        for other in pods:
            assert pod.has_spec_equal(other)
            assert pod.has_status_equal(other)
        assert not pod.has_spec_equal(_pod(8).packed(models))
        assert not pod.has_status_equal(_pod(8))
    empty = from_dict({"metadata": {"name": "x"}})
    assert empty.packed(models).has_spec_equal(empty)
    assert not empty.has_spec_equal(pods[0])


def test_texts_of_one_owner_share_a_model():
    models = Models()
    first = models.pack(("shop", "web"), b"a" * 300 + b"1")
    second = models.pack(("shop", "web"), b"a" * 300 + b"2")
    assert isinstance(first, bytes)
    assert isinstance(second, Packed)
    assert second.model is first
    assert len(second.difference) < 20


def test_an_unchanged_text_of_an_update_is_kept():
    """Most updates of a pod change its status only."""
    models = Models()
    _pod(1).packed(models)
    before = _pod(2).packed(models)
    after = _pod(2, phase="Failed").packed(models, before)
    assert after._spec is before._spec
    assert after.status["phase"] == "Failed"


def test_an_update_uses_the_model_of_the_object():
    """Also after the cache has forgotten it, because other owners had newer models."""
    models = Models()
    _pod(1).packed(models)
    before = _pod(2).packed(models)
    after = _pod(2, phase="Running").packed(Models(), before)
    changed = from_dict({**after.to_dict(), "spec": {**after.spec, "nodeName": "n"}}).packed(Models(), before)
    assert isinstance(changed._spec, Packed)
    assert changed.spec["nodeName"] == "n"


@pytest.mark.parametrize("text", [b"", b"x" * 255, b"x" * (32 * 1024 + 1)], ids=["empty", "short", "long"])
def test_texts_that_gain_nothing_stay(text):
    models = Models()
    assert models.pack(("a",), text) is text
    assert not models._models


def test_different_texts_stay_and_become_models():
    source = random.Random(3)
    models = Models()
    texts = [source.randbytes(1000) for _ in range(3000)]
    for text in texts:
        assert models.pack(("a", str(len(models._models))), text) is text
    assert len(models._models) <= 1024


@pytest.mark.parametrize("seed", range(20))
def test_any_text_is_read_as_it_was_packed(seed):
    source = random.Random(seed)
    models, last = Models(), None
    text = source.randbytes(source.randrange(1, 5000))
    for _ in range(200):
        at = source.randrange(len(text))
        text = text[:at] + source.randbytes(source.randrange(4)) + text[at + source.randrange(4) :] or b"x"
        packed = models.pack(("a",), text, last)
        assert packed is not None
        assert plain(packed) == text
        assert length(packed) == len(text)
        assert are_equal(packed, text)
        assert not are_equal(packed, text + b"1")
        last = packed


def test_equal_short_values_are_shared():
    models = Models()
    first, second = _pod(1).packed(models), _pod(2).packed(models)
    assert first.labels["app"] is second.labels["app"]
    assert first.metadata.raw_owner_references is second.metadata.raw_owner_references
    assert first.metadata.owner_references == second.metadata.owner_references


def test_shared_values_are_bounded():
    shared: Shared[str] = Shared()
    for number in range(20_000):
        text = f"value {number}"
        assert shared.get(text, text) is text
    assert len(shared._values) <= 8192
    long = "x" * 1000
    assert shared.get(long, long) is long
    assert long not in shared._values
