"""The Kubernetes verbs as methods, over requests to one API server that a subclass sends.

No HTTP library is imported here, because short commands send their requests without aiohttp (``brief``).
"""

from __future__ import annotations

import abc
import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol, TypeVar, Unpack

import msgspec

from controller_runtime.apimachinery.decoding import NestedTooDeeplyError, decoder
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client import collection
from controller_runtime.client.collection import (
    ListMeta,
    ListOptions,
    ListPages,
    ObjectList,
    ObjectSelection,
    decode_list,
    page_decoder,
)
from controller_runtime.client.limits import ResponseReader
from controller_runtime.client.requests import Params, RequestOptions
from controller_runtime.errors import (
    ApiError,
    CacheFull,
    ConnectionFailed,
    NotFound,
    ResponseTooLarge,
    Unavailable,
)
from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource
from controller_runtime.util.event_loop import Slicer

encode = msgspec.json.encode
_decode_body = decoder(dict[str, Any])
_JSON = {"Content-Type": "application/json"}
_EXCERPT = 100
"""Characters of an undecodable response that its error has."""
S = TypeVar("S")
T = TypeVar("T")
Items = list[T]
"""Alias, because ``Verbs.list`` hides the built-in name inside the class."""


class PatchType(enum.StrEnum):
    """The format of a patch, by its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


_PATCH_HEADERS = {kind: {"Content-Type": kind.value} for kind in PatchType}


class Head(Protocol):
    """The head of a response."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers; ``get`` finds them in any capitalization."""


class Verbs(abc.ABC):
    """Reads and writes objects of one API server.

    Attributes:
        config: the cluster and our credentials.
        timeout: seconds a request may take, including retries but not the wait for a rate limit.
        reader: reads responses within the limits.
        field_manager: our name in the managedFields of our writes, as part of a URL.
    """

    config: ConnectionConfig
    timeout: float
    reader: ResponseReader
    field_manager: str

    @abc.abstractmethod
    def receive(
        self, method: str, path: str, **options: Unpack[RequestOptions]
    ) -> AbstractAsyncContextManager[bytes]:
        """Send one request, with retries, and yield the complete body of the response."""

    @abc.abstractmethod
    def stream(
        self, method: str, path: str, *, head_timeout: float | None = None
    ) -> AbstractAsyncContextManager[Head]:
        """Send a request and yield the response while its body arrives; see ``Transport.stream``."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[Callable[[Object], None]]:
        """Yield a function to call with each object of a list, which may raise CacheFull; here there is no limit."""
        yield lambda _listed: None

    def deciding(self) -> AbstractAsyncContextManager[object]:
        """Return the context in which a page of a list is decoded."""
        return contextlib.nullcontext()

    def wrote(  # noqa: B027 - a client without caches has nothing to note
        self, resource: Resource, answer: Mapping[str, Any], *, is_created: bool
    ) -> None:
        """Record the response to a write, for caches of the resource."""

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> bytes:
        """Send one request as ``receive`` does, and return the complete body of the response.

        The slot of a large body (``ResponseLimits.large_at_once``) is released on return, so decode the body before
        the next await.
        """
        async with self.receive(method, path, **options) as body:
            return body

    async def read(self, path: str, **options: Unpack[RequestOptions]) -> dict[str, Any]:
        """Return the JSON of any path, such as discovery, within the response limits.

        Raises:
            ConnectionFailed: the response is not a JSON object.
            ResponseTooLarge: the response exceeds a limit.
            ApiError: the error that the server returned.
        """
        answer: dict[str, Any] = self._decode(
            await self.request("GET", path, **options), _decode_body, f"GET {path}"
        )
        return answer

    async def exists(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str = ""
    ) -> bool:
        """Report whether a collection has an object. Reads one object, whereas ``Client.list`` reads all pages.

        Raises:
            ApiError: the request failed.
        """
        page = await self.read(
            resource.path(namespace=namespace),
            params={"limit": "1"} | ({"labelSelector": label_selector} if label_selector else {}),
            verb="LIST",
            flow=resource.plural,
        )
        # A page without objects may have a continue token. Then assume that further pages have some.
        return bool(page.get("items") or page["metadata"].get("continue"))

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        params: Params | None = None,
    ) -> dict[str, Any]:
        """Return one object.

        Raises:
            NotFound: the object does not exist, reported by the API server in a Status.
            Unavailable: a 404 without a Status, for example from a proxy; the object may exist.
            ApiError: any other failure.
        """
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        try:
            return await self._json(resource, "GET", path, params=params)
        except NotFound as error:
            if not error.status:
                raise Unavailable(f"not an API server's answer: {error.message}", code=error.code) from error
            raise

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Create an object, or POST to a subresource of ``name``; return the response.

        Without a namespace, the one in the body is used. ``headers`` has more headers for this request, such as
        ``Impersonate-User``.

        Raises:
            AlreadyExists: an object with this name exists.
            ApiError: any other failure.
        """
        if name is None:
            body = _complete(resource, body)
            namespace = namespace or body.get("metadata", {}).get("namespace")
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._json(resource, "POST", path, body=body, params=params, headers=headers)

    async def update(
        self, resource: Resource, body: Mapping[str, Any], *, subresource: str | None = None
    ) -> dict[str, Any]:
        """Replace an object and return it; its resourceVersion is the precondition.

        Raises:
            Conflict: the object has changed.
            ApiError: any other failure.
        """
        metadata = body["metadata"]
        path = resource.path(
            namespace=metadata.get("namespace"), name=metadata["name"], subresource=subresource
        )
        return await self._json(resource, "PUT", path, body=_complete(resource, body))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        patch_type: PatchType = PatchType.MERGE,
        params: Params | None = None,
    ) -> dict[str, Any]:
        """Change parts of an object and return it.

        Raises:
            NotFound: the object does not exist.
            Conflict: a UID or resourceVersion in the patch does not match.
            ApiError: any other failure.
        """
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._json(
            resource, "PATCH", path, body=patch, params=params, content_type=_PATCH_HEADERS[patch_type]
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
    ) -> dict[str, Any]:
        """Delete an object, optionally only with this UID and resourceVersion; return the response.

        Raises:
            NotFound: the object does not exist.
            Conflict: a precondition does not match.
            ApiError: any other failure.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {
            key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value
        }
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy:
            options["propagationPolicy"] = propagation_policy
        path = resource.path(namespace=namespace, name=name)
        return await self._json(resource, "DELETE", path, body=options)

    async def list(
        self,
        resource: Resource,
        *,
        transform: Callable[[Object], Object | None] | None = None,
        **options: Unpack[ListOptions],
    ) -> ObjectList:
        """Return a complete collection; see ``list_as``, with ``transform`` as ``convert``.

        Without ``transform``, the list must fit into the memory that the caches of this server may use.
        """
        if transform is not None:
            return ObjectList(*await self.list_as(resource, transform, **options))
        with self.counting() as count:

            def counted(listed: Object) -> Object:
                count(listed)
                return listed

            try:
                return ObjectList(*await self.list_as(resource, counted, **options))
            except CacheFull as error:
                raise ResponseTooLarge(f"the list of {resource.qualified} is too large: {error}") from None

    async def list_as(
        self, resource: Resource, convert: Callable[[Object], T | None], **options: Unpack[ListOptions]
    ) -> tuple[Items[T], str]:
        """Return a complete collection, read page by page, and its resourceVersion.

        ``ListPages`` handles an expired continue token and a page that is too large.

        Args:
            resource: the resource to list.
            convert: called on every object of a page when it arrives, so that removed fields never fill memory. An object
                for which it returns None is left out.
            options: see ``ListOptions``.

        Raises:
            ResponseTooLarge: a single object exceeds a limit.
            ApiError: any other failure.
        """
        decode_page = partial(decode_list, api_version=resource.api_version, kind=resource.kind)
        return await self._list(resource, decode_page, convert, options)

    async def list_typed(self, resource: Resource, kind: type[T], **options: Unpack[ListOptions]) -> Items[T]:
        """Return a complete collection with only the fields of a type, such as a TypedDict; see ``list_as``."""
        return (await self._list(resource, page_decoder(kind), _unchanged, options))[0]

    async def _list(
        self,
        resource: Resource,
        decode_page: Callable[[bytes], tuple[Iterable[S], ListMeta]],
        convert: Callable[[S], T | None],
        options: ListOptions,
    ) -> tuple[Items[T], str]:
        path = resource.path(namespace=options.get("namespace"))
        params = params_of(options, options.get("resource_version"))
        headers = collection.METADATA_ONLY if options.get("metadata_only") else None
        pages = ListPages(params, size=options.get("page_size", collection.SIZE))

        async def page() -> tuple[Items[T], ListMeta]:
            async with (
                self.receive(
                    "GET", path, params=pages.params, headers=headers, verb="LIST", flow=resource.plural
                ) as body,
                self.deciding(),
            ):
                what = f"GET {path}"
                found, meta = self._decode(body, decode_page, what)
                converted: Items[T] = []
                slicer = Slicer()
                with self._decoding(body, what):
                    for one in found:
                        if (kept := convert(one)) is not None:
                            converted.append(kept)
                        await slicer.tick()
                return converted, meta

        return await pages.read(page)

    async def version(self, *, timeout: float = 5.0) -> dict[str, Any]:  # noqa: ASYNC109 - of the request
        """Return the content of the server's ``/version``."""
        return await self.read("/version", timeout=timeout)

    async def ping(self, *, timeout: float) -> None:  # noqa: ASYNC109 - of the request
        """Check that the server is ready; without permission for ``/readyz``, request ``/version`` instead.

        Raises:
            ApiError: the server is not ready.
        """
        try:
            await self.request("GET", "/readyz", timeout=timeout)
        except Unavailable:
            raise
        except ApiError:
            await self.version(timeout=timeout)

    async def _json(
        self,
        resource: Resource,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Params | None = None,
        content_type: Mapping[str, str] = _JSON,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if method not in {"GET", "DELETE"}:
            path = f"{path}?fieldManager={self.field_manager}"
        answer = await self.request(
            method,
            path,
            params=params,
            body=None if body is None else encode(body),
            headers={**({} if body is None else content_type), **(headers or {})},
            flow=resource.plural,
        )
        decoded: dict[str, Any] = self._decode(answer, _decode_body, f"{method} {path}")
        if method != "GET":
            self.wrote(resource, decoded, is_created=method == "POST")
        return decoded

    def _decode(self, answer: bytes, decoder: Callable[[bytes], T], what: str) -> T:
        """Decode a body or a watch line; ``what`` is method and path, for errors."""
        self.reader.check_values(answer, what)
        with self._decoding(answer, what):
            return decoder(answer)

    @contextlib.contextmanager
    def _decoding(self, answer: bytes, what: str) -> Iterator[None]:
        """Raise errors of the decoding of a body in the block as ApiError."""
        try:
            yield
        except NestedTooDeeplyError as error:
            # Users can write such objects, so this must not count as an unreachable server.
            raise self.reader.too_deep(what) from error
        except msgspec.DecodeError as error:
            excerpt = " ".join(answer[:_EXCERPT].decode("utf-8", "replace").split())
            raise ConnectionFailed(
                f"{self.config.server}: the answer is not what a Kubernetes API sends: {excerpt!r}"
            ) from error


def _unchanged(one: T) -> T:
    return one


def params_of(options: ObjectSelection, version: str | None) -> dict[str, str]:
    """Return the query parameters of a selection and of a resourceVersion; None: without one."""
    selectors = {
        "labelSelector": options.get("label_selector"),
        "fieldSelector": options.get("field_selector"),
    }
    params = {name: text for name, text in selectors.items() if text}
    return params if version is None else {**params, "resourceVersion": version}


async def find_object(client: Verbs, resource: Resource, name: str, **options: Any) -> Object | None:
    """Return an object as ``find`` does, but as an ``Object`` instead of a dict."""
    found = await find(client, resource, name, **options)
    return None if found is None else from_dict(found)


async def find(client: Verbs, resource: Resource, name: str, **options: Any) -> dict[str, Any] | None:
    """Return an object as ``client.get`` does; None if it does not exist.

    Raises:
        ApiError: any other failure.
    """
    try:
        return await client.get(resource, name, **options)
    except NotFound:
        return None


async def find_listed(client: Verbs, resource: Resource, name: str, *, namespace: str) -> Object | None:
    """Return an object; None if it does not exist. Needs only the right ``list``, which each account with a cache has.

    Raises:
        ApiError: any other failure.
    """
    listed = await client.list(resource, namespace=namespace, field_selector=f"metadata.name={name}")
    return next(iter(listed.items), None)


def _complete(resource: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body with apiVersion and kind, which servers require, taken from the resource if missing."""
    if "kind" in body and "apiVersion" in body:
        return body
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
