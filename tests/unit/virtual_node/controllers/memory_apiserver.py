"""A small apiserver in memory with the client's own methods: for controllers with real informers, in virtual time.

What it keeps of a real one: uids and resourceVersions, preconditions, selectors, watches, finalizers, graceful
deletion of pods, generations, subresources. A watch can be held back, as after an outage.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from controller_runtime import consistency
from controller_runtime.client.reconnect_queue import Outage
from controller_runtime.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from controller_runtime.objects import Object, WatchEvent, from_dict
from controller_runtime.resources import Resource
from tests.unit.virtual_node.controllers.patches import merged

Body = dict[str, Any]
Batches = AsyncIterator[list[WatchEvent]]
Fault = Callable[[str, str, str], ApiError | None]
"""Verb, plural (with ``/subresource``) and key of a request → the error that answers it; None: it is served."""


def refusing(error: ApiError, plural: str) -> Fault:
    """Requests of that plural (with ``/subresource``) are answered by the error, others are served."""
    return lambda _verb, asked, _key: error if asked == plural else None


class Api:
    """One cluster. Hand it to a controller in place of a client."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.config = SimpleNamespace(server=f"https://{cluster}:6443")
        self.objects: dict[tuple[str, str], Body] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.fault: Fault = lambda _verb, _plural, _key: None
        self.keep: Callable[[str, Body], None] = lambda _plural, _body: None
        """Takes out of a patched object what the version of this API server does not know."""
        self.held: set[str] = set()
        """Plurals whose watches say nothing for now."""
        self._history: list[tuple[int, str, Body | None, Body | None]] = []
        """Version, plural, and what was there before and after."""
        self._version = 0
        self._news = asyncio.Event()

    # --- for tests --------------------------------------------------------------------------------

    def put(self, plural: str, body: Mapping[str, Any]) -> Body:
        """Have an object there as it is given, but for uid and version."""
        body = _copy(body)
        metadata = body["metadata"]
        self._version += 1
        metadata.setdefault("uid", f"{self.cluster}-{self._version}")
        metadata["resourceVersion"] = str(self._version)
        key = _key(metadata.get("namespace"), metadata["name"])
        before = self.objects.get((plural, key))
        self.objects[plural, key] = body
        self._tell(plural, before, body)
        return _copy(body)

    def change(self, plural: str, key: str, **fields: Any) -> Body:
        """Merge fields into an object, past every rule."""
        return self.put(plural, merged(self.objects[plural, key], fields))

    def vanish(self, plural: str, key: str) -> None:
        """Remove an object at once, past every rule."""
        self._version += 1
        body = self.objects.pop((plural, key))
        body["metadata"]["resourceVersion"] = str(self._version)
        self._tell(plural, body, None)

    def find(self, plural: str, key: str) -> Body | None:
        """The object, or None."""
        found = self.objects.get((plural, key))
        return _copy(found) if found is not None else None

    def the(self, plural: str, key: str) -> Body:
        """The object; KeyError where there is none."""
        return _copy(self.objects[plural, key])

    def release(self, plural: str) -> None:
        """Watches of that resource go on, with all that they have missed."""
        self.held.discard(plural)
        self._wake()

    def asked(self, verb: str, plural: str) -> list[str]:
        """Keys of the requests of that verb."""
        return [key for what, where, key in self.calls if (what, where) == (verb, plural)]

    # --- the client's methods ---------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Body:
        """Read one."""
        return _copy(self._there("get", resource.plural, _key(namespace, name)))

    async def list(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str | None = None,
        field_selector: str | None = None, transform: Callable[[Object], Object] | None = None, **_rest: Any,
    ) -> Any:  # fmt: skip
        """Read those that are selected."""
        self._ask("list", resource.plural, field_selector or label_selector or "")
        chosen = _selection(namespace, label_selector, field_selector)
        items = [
            transform(from_dict(body)) if transform else from_dict(body)
            for (plural, _), body in self.objects.items()
            if plural == resource.plural and chosen(body)
        ]
        return SimpleNamespace(items=items, resource_version=str(self._version))

    async def watch_batches(
        self, resource: Resource, *, resource_version: str, namespace: str | None = None,
        label_selector: str | None = None, field_selector: str | None = None, **_rest: Any,
    ) -> Batches:  # fmt: skip
        """Follow those that are selected."""
        chosen = _selection(namespace, label_selector, field_selector)
        seen = int(resource_version)
        while True:
            news = self._news
            if resource.plural not in self.held:
                batch = [
                    event
                    for version, plural, before, after in self._history
                    if version > seen
                    and plural == resource.plural
                    and (event := _event(chosen, before, after))
                ]
                seen = self._version
                if batch:
                    yield batch
                    continue
            await news.wait()

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None,
        name: str | None = None, subresource: str | None = None,
    ) -> Body:  # fmt: skip
        """Make one; of subresources only ``token`` is known."""
        if subresource == "token":
            self._ask("create", "serviceaccounts/token", _key(namespace, name or ""))
            return {"status": {"token": "t", "expirationTimestamp": "2099-01-01T00:00:00Z"}}
        key = _key(namespace, body["metadata"]["name"])
        self._ask("create", resource.plural, key)
        if (resource.plural, key) in self.objects:
            raise AlreadyExists("exists", code=409, reason="AlreadyExists")
        made = _copy(body)
        made["metadata"] |= {"generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
        if namespace:
            made["metadata"]["namespace"] = namespace
        if resource.plural == "pods":
            made["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        return self._noted(resource, self.put(resource.plural, made))

    async def patch(
        self, resource: Resource, name: str, patch: Mapping[str, Any], *, namespace: str | None = None,
        subresource: str | None = None, patch_type: Any = None,
    ) -> Body:  # fmt: skip
        """Change one."""
        plural, key = resource.plural, _key(namespace, name)
        there = self._there("patch", f"{plural}/{subresource}" if subresource else plural, key)
        asked = patch.get("metadata") or {}
        if asked.get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
            raise Invalid("immutable", code=422, status={"details": {"causes": [{"field": "metadata.uid"}]}})
        if (
            asked.get("resourceVersion", there["metadata"]["resourceVersion"])
            != there["metadata"]["resourceVersion"]
        ):
            raise Conflict("modified", code=409)
        after: Body = merged(there, patch)
        self.keep(plural, after)
        if after.get("spec") != there.get("spec"):
            after["metadata"]["generation"] = there["metadata"].get("generation", 0) + 1
        held, ending = (there["metadata"].get(one) for one in ("finalizers", "deletionTimestamp"))
        if held and ending and not after["metadata"].get("finalizers"):
            self.objects[plural, key] = after
            self.vanish(plural, key)
            return after
        return self._noted(resource, self.put(plural, after) if after != there else _copy(there))

    async def delete(
        self, resource: Resource, name: str, *, namespace: str | None = None, uid: str | None = None,
        resource_version: str | None = None, grace_period_seconds: int | None = None,
    ) -> Body:  # fmt: skip
        """Remove one; a pod ends gracefully unless it is asked not to."""
        plural, key = resource.plural, _key(namespace, name)
        metadata = self._there("delete", plural, key)["metadata"]
        if (uid and uid != metadata["uid"]) or resource_version not in (None, metadata["resourceVersion"]):
            raise Conflict("precondition", code=409)
        grace = grace_period_seconds
        if grace is None:
            grace = 30 if plural == "pods" else 0
        if grace or metadata.get("finalizers"):
            gone = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": grace}
            return self._noted(resource, self.change(plural, key, metadata=gone))
        self.vanish(plural, key)
        return {}

    # --- within -----------------------------------------------------------------------------------

    def _ask(self, verb: str, plural: str, key: str) -> None:
        self.calls.append((verb, plural, key))
        if (error := self.fault(verb, plural, key)) is not None:
            raise error

    def _noted(self, resource: Resource, answer: Body) -> Body:
        """Note the answer to a write as the real client does."""
        consistency.wrote(self, resource, answer)
        return answer

    def _there(self, verb: str, plural: str, key: str) -> Body:
        self._ask(verb, plural, key)
        found = self.objects.get((plural.partition("/")[0], key))
        if found is None:
            status = {"details": {"name": key.rpartition("/")[2], "kind": plural}}
            raise NotFound(f'{plural} "{key}" not found', code=404, reason="NotFound", status=status)
        return found

    def _tell(self, plural: str, before: Body | None, after: Body | None) -> None:
        self._history.append((self._version, plural, before, _copy(after) if after is not None else None))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _event(chosen: Callable[[Body], bool], before: Body | None, after: Body | None) -> WatchEvent | None:
    """A change as a watch of a selection tells it: what no longer belongs to it is gone."""
    was_there = before is not None and chosen(before)
    if after is not None and chosen(after):
        return WatchEvent("MODIFIED" if was_there else "ADDED", from_dict(after))
    if before is None or not was_there:
        return None
    version = (after or before)["metadata"]["resourceVersion"]
    return WatchEvent("DELETED", from_dict(merged(before, {"metadata": {"resourceVersion": version}})))


def _copy(body: Mapping[str, Any]) -> Body:
    copied: Body = json.loads(json.dumps(body))
    return copied


def _key(namespace: str | None, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _selection(namespace: str | None, labels: str | None, fields: str | None) -> Callable[[Body], bool]:
    def chosen(body: Body) -> bool:
        metadata = body["metadata"]
        return (
            namespace in (None, metadata.get("namespace"))
            and all(_has(metadata.get("labels") or {}, term) for term in _terms(labels))
            and all(_field(body, term) for term in _terms(fields))
        )

    return chosen


def _terms(selector: str | None) -> list[str]:
    return re.split(r",(?![^(]*\))", selector) if selector else []


def _has(labels: Mapping[str, str], term: str) -> bool:
    if found := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term):
        key, operator, values = found.groups()
        return (labels.get(key) in values.split(",")) == (operator == "in")
    if "!=" in term:
        key, _, value = term.partition("!=")
        return labels.get(key) != value
    key, equals, value = term.partition("=")
    return labels.get(key) == value if equals else key in labels


def _field(body: Any, term: str) -> bool:
    path, _, value = term.partition("=")
    for step in path.split("."):
        body = (body or {}).get(step)
    return bool((body or "") == value)
