"""What is still in a lower namespace: nothing is overlooked, and what cannot be told is not nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from controller_runtime.api import names
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, Forbidden, NotFound
from virtual_node.controllers.leftovers import Leftovers, UnknownError

KINDS = {
    "/apis": {"groups": [{"name": "example.com", "preferredVersion": {"version": "v1"}}]},
    "/api/v1": {
        "resources": [
            {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["list"]},
            {"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get", "list"]},
            {"name": "nodes", "kind": "Node", "namespaced": False, "verbs": ["list"]},
            {"name": "bindings", "kind": "Binding", "namespaced": True, "verbs": ["create"]},
            {"name": "persistentvolumeclaims", "kind": "PersistentVolumeClaim", "namespaced": True, "verbs": ["list"]},
        ]
    },
    "/apis/example.com/v1": {
        "resources": [{"name": "gadgets", "kind": "Gadget", "namespaced": True, "verbs": ["list"]}]
    },
}  # fmt: skip
PODS = "/api/v1/namespaces/shop/pods"
CLAIMS = "/api/v1/namespaces/shop/persistentvolumeclaims"
GADGETS = "/apis/example.com/v1/namespaces/shop/gadgets"
EMPTY: dict[str, Any] = {PODS: {"items": None}, CLAIMS: {"items": []}, GADGETS: {"items": []}}


class Lower:
    """Answers by path; an exception is raised, a list holds the pages in order."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = {**KINDS, **EMPTY, **answers}
        self.tokens: list[str | None] = []

    async def request(self, method: str, path: str, *, params=None, headers=None, flow="") -> bytes:
        assert method == "GET"
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, list):
            self.tokens.append(params.get("continue"))
            answer = answer.pop(0)
        return json.dumps(answer).encode()


def named(name: str, *, ours: bool = False) -> dict[str, Any]:
    """An object as its metadata alone."""
    labels = {names.LABEL_UPPER_CLUSTER: "upper-1"} if ours else {}
    return {"metadata": {"name": name, "labels": labels}}


def leftovers(**answers: Any) -> tuple[Leftovers, Lower]:
    """What is under test, with these answers beside those of an empty namespace."""
    paths = {"pods": PODS, "claims": CLAIMS, "gadgets": GADGETS, "apis": "/apis", "core": "/api/v1"}
    lower = Lower({paths[key]: answer for key, answer in answers.items()})
    return Leftovers(cast("Client", lower), "upper-1"), lower


async def test_an_empty_namespace_has_nothing() -> None:
    """Lists may be null."""
    found = await leftovers()[0].find("shop")
    assert (found.others, found.pods) == ([], 0)


async def test_every_kind_counts() -> None:
    """Pods of ours are counted, other people's objects of any kind and every claim are named."""
    found = await leftovers(
        pods={"items": [named("ours", ours=True), named("theirs")]},
        claims={"items": [named("data", ours=True)]},
        gadgets={"items": [named("lamp")]},
    )[0].find("shop")
    assert found.pods == 1
    assert sorted(found.others) == ["gadgets.example.com lamp", "persistentvolumeclaims data", "pods theirs"]


async def test_all_pages_are_read() -> None:
    """What is on the second page is as much there."""
    first = {"items": [named("a")], "metadata": {"continue": "next"}}
    reader, lower = leftovers(pods=[first, {"items": [named("b")], "metadata": {}}])
    assert (await reader.find("shop")).others == ["pods a", "pods b"]
    assert lower.tokens == [None, "next"]


async def test_a_kind_that_went_meanwhile_has_no_objects() -> None:
    """Its definition was deleted between discovery and the list."""
    found = await leftovers(gadgets=NotFound("gone", code=404))[0].find("shop")
    assert found.others == []


@pytest.mark.parametrize(
    "answers",
    [
        {"pods": Forbidden("no", code=403)},
        {"gadgets": ApiError("the server of this API is away", code=503)},
        {"apis": ApiError("busy", code=500)},
        {"pods": NotFound("no such page", code=404)},
        {"pods": {}},
        {"pods": {"status": "ok"}},
        {"apis": {"kind": "Status"}},
        {"core": {}},
    ],
)
async def test_what_cannot_be_told_is_not_nothing(answers: dict[str, Any]) -> None:
    """A refusal, an aggregated API that is away, or JSON of a proxy in between."""
    with pytest.raises(UnknownError):
        await leftovers(**answers)[0].find("shop")
