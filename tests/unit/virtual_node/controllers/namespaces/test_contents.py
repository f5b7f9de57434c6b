"""The content of a lower namespace: nothing is overlooked, and an unreadable kind does not count as empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from clusterset.model import names
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Forbidden, NotFound, ResponseTooLarge
from virtual_node.controllers.namespaces import Leftovers, UnknownError

KINDS: dict[str, Any] = {
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
    """Responds by path; an exception is raised, a list holds the pages in order."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = {**KINDS, **EMPTY, **answers}
        self.tokens: list[str | None] = []

    async def read(self, path: str, *, params=None, headers=None, flow="") -> dict[str, Any]:
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, list):
            self.tokens.append(params.get("continue"))
            answer = answer.pop(0)
        return cast("dict[str, Any]", answer)


def named(name: str, *, ours: bool = False) -> dict[str, Any]:
    """Return an object with metadata only."""
    labels = {names.LABEL_UPPER_CLUSTER: "upper-1"} if ours else {}
    return {"metadata": {"name": name, "labels": labels}}


def leftovers(**answers: Any) -> tuple[Leftovers, Lower]:
    """Return the result with these responses in addition to those of an empty namespace."""
    paths = {"pods": PODS, "claims": CLAIMS, "gadgets": GADGETS, "apis": "/apis", "core": "/api/v1"}
    lower = Lower({paths[key]: answer for key, answer in answers.items()})
    return Leftovers(cast("Client", lower), "upper-1"), lower


async def test_an_empty_namespace_has_nothing() -> None:
    """Lists may be null."""
    found = await leftovers()[0].find("shop", upper_name="shop")
    assert (found.others, found.pods) == ([], 0)


async def test_every_kind_counts() -> None:
    """Owned pods are counted, unmanaged objects of any kind and every claim are named."""
    found = await leftovers(
        pods={"items": [named("ours", ours=True), named("theirs")]},
        claims={"items": [named("data", ours=True)]},
        gadgets={"items": [named("lamp")]},
    )[0].find("shop", upper_name="shop")
    assert found.pods == 1
    assert sorted(found.others) == ["gadgets.example.com lamp", "persistentvolumeclaims data", "pods theirs"]


async def test_kinds_that_the_preferred_version_lacks_count() -> None:
    """A kind of several versions is listed once."""
    kinds = KINDS["/apis/example.com/v1"]["resources"]
    older = [{**kinds[0], "name": "widgets", "kind": "Widget"}, *kinds]
    group = {
        "name": "example.com",
        "preferredVersion": {"version": "v1"},
        "versions": [{"version": "v1"}, {"version": "v1alpha1"}],
    }
    reader, lower = leftovers(apis={"groups": [group]})
    lower.answers["/apis/example.com/v1alpha1"] = {"resources": older}
    lower.answers["/apis/example.com/v1alpha1/namespaces/shop/widgets"] = {"items": [named("lamp")]}
    assert (await reader.find("shop", upper_name="shop")).others == ["widgets.example.com lamp"]


async def test_a_claim_counts_though_a_pattern_matches_it() -> None:
    """It holds data."""
    reader, _ = leftovers(pods={"items": [named("x")]}, claims={"items": [named("data")]})
    reader.generated = ["persistentvolumeclaims/*", "pods/x"]
    found = await reader.find("shop", upper_name="shop")
    assert found.others == ["persistentvolumeclaims data"]
    assert found.pods == 0  # pods of ours are waited for, and a generated one does not end


async def test_all_pages_are_read() -> None:
    first = {"items": [named("a")], "metadata": {"continue": "next"}}
    reader, lower = leftovers(pods=[first, {"items": [named("b")], "metadata": {}}])
    assert (await reader.find("shop", upper_name="shop")).others == ["pods a", "pods b"]
    assert lower.tokens == [None, "next"]


@pytest.mark.looptime
async def test_endless_pages_end_the_search() -> None:
    """A hostile server with endless pages of owned objects does not occupy the worker."""
    reader, lower = leftovers()
    asked = 0

    async def read(path: str, **more: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        assert asked < 20_000, "the search does not end"
        if path != PODS:
            return cast("dict[str, Any]", lower.answers[path])
        return {"items": [named("ours", ours=True)], "metadata": {"continue": "another"}}

    lower.read = read  # type: ignore[method-assign]
    with pytest.raises(UnknownError):
        await reader.find("shop", upper_name="shop")


async def test_search_ends_at_the_first_unmanaged_objects() -> None:
    """A few names suffice to keep a namespace: no further page is requested, and long names are cut."""
    many = [named("x" * 1_000_000 + str(number)) for number in range(50)]
    reader, lower = leftovers(pods=[{"items": many, "metadata": {"continue": "another"}}])
    found = await reader.find("shop", upper_name="shop")
    assert len(found.others) == 5
    assert max(map(len, found.others)) <= 300
    assert lower.tokens == [None]


async def test_page_that_exceeds_a_limit_is_read_in_parts() -> None:
    """Large objects of a tenant must not keep a namespace forever."""
    reader, lower = leftovers()
    limits: list[str] = []

    async def read(path: str, *, params: Any = None, **_more: Any) -> dict[str, Any]:
        if path == PODS:
            limits.append(params["limit"])
            if int(params["limit"]) > 100:
                raise ResponseTooLarge("more than 1,000,000 JSON values")
        return cast("dict[str, Any]", lower.answers[path])

    lower.read = read  # type: ignore[method-assign]
    assert (await reader.find("shop", upper_name="shop")).others == []
    assert limits == ["500", "100"]


async def test_a_kind_deleted_meanwhile_has_no_objects() -> None:
    """Its definition was deleted between discovery and the list."""
    found = await leftovers(gadgets=NotFound("gone", code=404))[0].find("shop", upper_name="shop")
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
async def test_an_unreadable_kind_is_not_empty(answers: dict[str, Any]) -> None:
    """A refusal, an unreachable aggregated API, or a proxy's JSON."""
    with pytest.raises(UnknownError):
        await leftovers(**answers)[0].find("shop", upper_name="shop")
