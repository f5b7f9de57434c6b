"""The verbs of single objects: read, create, replace, patch, delete. Responses are plain dicts."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, Unpack

import msgspec

from controller_runtime import consistency
from controller_runtime.apimachinery.decoding import NestedTooDeeplyError, decoder
from controller_runtime.client.transport import Params, RequestOptions, Transport
from controller_runtime.errors import ConnectionFailed, NotFound, Unavailable
from controller_runtime.resources import Resource

_JSON = {"Content-Type": "application/json"}
_EXCERPT = 100

T = TypeVar("T")

encode = msgspec.json.encode
_decode_body = decoder(dict[str, Any])


class PatchType(enum.StrEnum):
    """The format of a patch, by its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


_PATCH_HEADERS = {kind: {"Content-Type": kind.value} for kind in PatchType}


class ObjectVerbs(Transport):
    """Requests for single objects of one API server; ``client.Client`` adds collections."""

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
            path = f"{path}?fieldManager={self._field_manager}"
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
            consistency.wrote(self, resource, decoded)
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


def _complete(resource: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body with apiVersion and kind, which servers require, taken from the resource if missing."""
    if "kind" in body and "apiVersion" in body:
        return body
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
