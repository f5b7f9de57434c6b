"""The client reads a collection page by page, as one list."""

from __future__ import annotations

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.errors import ConnectionFailed, Expired
from controller_runtime.objects import Object
from tests.unit.controller_runtime.loopback import answers, client_of, failure, reply, serve


def page(names: str, *, version: str = "9", token: str = "") -> web.Response:
    """Return a page of pods without kinds, as servers send them."""
    return reply(
        {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": version, **({"continue": token} if token else {})},
            "items": [{"metadata": {"name": name, "namespace": "shop"}} for name in names],
        }
    )


async def test_list_follows_the_pages() -> None:
    """Until there is no continue token; the result is one list."""
    script = answers(page("ab", token="t1"), page("cd", token="t2"), page("e"))
    async with serve(script) as server, client_of(server) as client:
        found = await client.list(
            resources.PODS,
            namespace="shop",
            page_size=2,
            label_selector="a=b,c",
            field_selector="spec.nodeName=n",
            resource_version="0",
        )
    assert "".join(item.name for item in found.items) == "abcde"
    assert found.resource_version == "9"
    assert {(item.api_version, item.kind) for item in found.items} == {("v1", "Pod")}
    selection = {"labelSelector": "a=b,c", "fieldSelector": "spec.nodeName=n", "limit": "2"}
    assert [asked.query for asked in server.asked] == [
        {**selection, "resourceVersion": "0"},
        {**selection, "continue": "t1"},
        {**selection, "continue": "t2"},
    ]
    assert {asked.path for asked in server.asked} == {"/api/v1/namespaces/shop/pods"}


async def test_pages_are_transformed_as_they_arrive() -> None:
    """Unneeded parts of a page are freed before the next page is requested."""
    pages = [page("ab", token="t1"), page("cd", token="t2"), page("e")]
    dropped: list[str] = []
    dropped_before_page: list[int] = []

    async def script(request: web.Request) -> web.StreamResponse:
        dropped_before_page.append(len(dropped))
        return pages.pop(0)

    def drop(found: Object) -> Object:
        dropped.append(found.name)
        return found.without("spec", "status")

    async with serve(script) as server, client_of(server) as client:
        found = await client.list(resources.PODS, page_size=2, transform=drop)
    assert dropped_before_page == [0, 2, 4]
    assert [(item.name, item.spec) for item in found.items] == [(name, None) for name in "abcde"]


async def test_a_collection_with_objects_exists() -> None:
    """One object is read, although there are further pages. Without objects, nothing exists."""
    async with serve(answers(page("a", token="t1"), page(""))) as server, client_of(server) as client:
        assert await client.exists(resources.PODS, namespace="shop", label_selector="a=b")
        assert not await client.exists(resources.PODS)
    assert [asked.query for asked in server.asked] == [{"limit": "1", "labelSelector": "a=b"}, {"limit": "1"}]


async def test_list_of_metadata() -> None:
    """Every page is requested without spec and status."""
    script = answers(page("a", token="t1"), page("b"))
    async with serve(script) as server, client_of(server) as client:
        names, _ = await client.list_as(resources.PODS, lambda pod: pod.name, metadata_only=True)
        assert names == ["a", "b"]
        accepted = [asked.headers["Accept"].partition(";")[2] for asked in server.asked]
        assert accepted == ["as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"] * 2


async def test_list_without_pages() -> None:
    """A page size of 0 requests everything at once."""
    async with serve(answers(page("abc"))) as server, client_of(server) as client:
        found = await client.list(resources.PODS, page_size=0)
    assert (len(found.items), server.asked[0].query) == (3, {})


async def test_continue_token_that_expires() -> None:
    """After 410 in mid-list the whole list is read again without pages, without duplicates."""
    script = answers(page("ab", token="t1"), failure(410, "Expired"), page("abcd", version="12"))
    async with serve(script) as server, client_of(server) as client:
        found = await client.list(resources.PODS, page_size=2, label_selector="a")
    assert "".join(item.name for item in found.items) == "abcd"
    assert found.resource_version == "12"
    assert server.asked[-1].query == {"labelSelector": "a"}


async def test_expired_version_of_a_list() -> None:
    """410 on the first page is raised."""
    async with serve(answers(failure(410, "Expired"))) as server, client_of(server) as client:
        with pytest.raises(Expired):
            await client.list(resources.PODS, resource_version="3")


@pytest.mark.parametrize("body", [{}, {"status": "ok"}, {"kind": "Status", "status": "Success"}])
async def test_other_json_is_no_empty_collection(body: dict[str, str]) -> None:
    """A proxy's JSON with code 200 must not make a whole cache look deleted."""
    async with serve(answers(reply(body))) as server, client_of(server) as client:
        with pytest.raises(ConnectionFailed, match="the answer is not what a Kubernetes API sends"):
            await client.list(resources.PODS)


async def test_collection_with_null_items_is_empty() -> None:
    """Servers written in Go send null for an empty list."""
    body = {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": None}
    async with serve(answers(reply(body))) as server, client_of(server) as client:
        assert (await client.list(resources.PODS)).items == []
