"""Reads a cluster for a person: what they may not see is noted, and keeps nothing else from being seen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.api.readable import guess
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.commands.common import previous_logs as last_words
from virtual_node.commands.common.permissions import Need, need, refusal

T = TypeVar("T")
VIRTUAL_NODES = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}"
"""Label selector."""
NODE_LEASES = "kube-node-lease"
"""Namespace of the nodes' heartbeats."""


class Reader:
    """One person's view of one cluster, at one moment: what has been read is not asked for again."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._read: dict[tuple[Any, ...], asyncio.Task[Any]] = {}
        self.missing: dict[Need, None] = {}
        """Rights that were missing, in the order in which they were."""

    async def all(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> list[Object] | None:
        """A collection, sorted by key; None: it is not for this person.

        Raises:
            ApiError: anything else.
        """

        async def read() -> list[Object] | None:
            try:
                listed = await self.client.list(
                    resource,
                    namespace=namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                )
            except Forbidden:
                self.missing[need("list", resource, namespace=namespace)] = None
                return None
            return sorted(listed.items, key=lambda one: one.key)

        return await self._once(("list", resource, namespace, label_selector, field_selector), read)

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None
    ) -> dict[str, Any] | None:
        """An object; None: there is none, or it is not for this person.

        Raises:
            ApiError: anything else.
        """

        async def read() -> dict[str, Any] | None:
            try:
                return await self.client.get(resource, name, namespace=namespace)
            except NotFound:
                return None
            except Forbidden:
                self.missing[need("get", resource, namespace=namespace)] = None
                return None

        return await self._once(("get", resource, namespace, name), read)

    async def find(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        otherwise: str = "",
    ) -> dict[str, Any]:
        """The object that a person has named.

        Args:
            resource: its kind.
            name: as typed.
            namespace: as meant.
            label_selector: which others they may have meant.
            otherwise: what to do where there is none, and none that is called alike.

        Raises:
            ConfigError: there is none of that name, with a guess; or it may not be seen.
            ApiError: the cluster does not answer.
        """
        try:
            return await self.client.get(resource, name, namespace=namespace)
        except Forbidden:
            raise refusal("get", resource, namespace=namespace) from None
        except NotFound:
            pass
        hint = ""
        with contextlib.suppress(ApiError):
            there = await self.all(resource, namespace=namespace, label_selector=label_selector)
            hint = guess(name, [one.name for one in there or ()])
            if not hint and namespace:
                elsewhere = await self.all(resource, field_selector=f"metadata.name={name}")
                hint = f", did you mean {elsewhere[0].key}?" if elsewhere else ""
        key = f"{namespace}/{name}" if namespace else name
        otherwise = f"; {otherwise}" if otherwise else ""
        raise ConfigError(
            f"there is no {resource.kind.lower()} {key} in the upper cluster{hint or otherwise}"
        )

    async def last_words(self, pod: Mapping[str, Any]) -> list[str]:
        """See ``last_words.of``; none where the log cannot be had."""
        try:
            return await last_words.of(self.client, pod)
        except Forbidden:
            namespace = pod["metadata"]["namespace"]
            self.missing[need("get", resources.PODS, namespace=namespace, subresource="log")] = None
        except ApiError:
            pass  # its node is away, or the container: what is told without a log is told all the same
        return []

    async def _once(self, key: tuple[Any, ...], read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if key not in self._read:
            self._read[key] = asyncio.create_task(read())
        found: T = await self._read[key]
        return found

    def rights(self) -> list[dict[str, str]]:
        """What was missing, for ``-o json``: the right, and the command that asks for it."""
        return [{"right": one.words, "check": one.question} for one in self.missing]

    def note(self) -> str:
        """What was missing, in a line for people; empty: nothing was."""
        if not self.missing:
            return ""
        rights = "; ".join(one.question for one in self.missing)
        return f"some of it is not shown, for these say no: {rights}"
