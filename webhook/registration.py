"""Sees to it that the API server asks us, and trusts whom it asks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from controller_runtime import log, resources
from controller_runtime.api import names
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object
from webhook import manifests

ClientConfig = Callable[[str, bytes], Mapping[str, Any]]
"""From a path and a CA bundle to a clientConfig."""


class Registrar:
    """Keeps the webhook configurations: made by us, or only given our CA where the chart made them and asks for it."""

    def __init__(self, client: Client, *, name: str, client_config: ClientConfig | None) -> None:
        """Set up.

        Args:
            client: of the upper cluster.
            name: of both configurations.
            client_config: where the API server finds us; None: the configurations exist and lack our CA alone, where they say so.
        """
        self._client = client
        self._name = name
        self._client_config = client_config
        self._log = log.get_logger(component="registration")
        self.informers = [
            Informer(client, resource, field_selector=f"metadata.name={name}")
            for resource in (
                resources.MUTATING_WEBHOOK_CONFIGURATIONS,
                resources.VALIDATING_WEBHOOK_CONFIGURATIONS,
            )
        ]
        """Of the configurations; to be run by whoever made this."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have it called when somebody changes or deletes the configurations."""
        for informer in self.informers:
            informer.add_handler(on_update=lambda _old, _new: changed(), on_delete=lambda _gone: changed())

    def unannounced(self, ca: bytes) -> str | None:
        """Why the API server would not trust a certificate of this CA, for ``/readyz``; None when it does.

        Configurations that are not there ask for nothing, unless we are to make them. A CA that is not ours to write
        is not ours to judge.

        Args:
            ca: PEM.
        """
        for informer in self.informers:
            kind = informer.resource.kind
            if not informer.has_synced:
                return f"{kind} {self._name} has not been looked for yet"
            found = informer.store.get(self._name)
            if found is None:
                if self._client_config is not None:
                    return f"{kind} {self._name} has not been made yet"
            elif (self._client_config is not None or _wants_ca(found.annotations)) and not _trusts(found, ca):
                return f"{kind} {self._name} does not have our CA yet"
        return None

    async def announce(self, ca_bundle: bytes) -> None:
        """Have the API server ask us and trust these CAs. Writes only what differs.

        Raises:
            ApiError: it cannot be written.
        """
        for resource, path, make in (
            (resources.MUTATING_WEBHOOK_CONFIGURATIONS, manifests.MUTATE_PATH, manifests.mutating),
            (resources.VALIDATING_WEBHOOK_CONFIGURATIONS, manifests.VALIDATE_PATH, manifests.validating),
        ):
            wanted = (self._client_config or _nowhere)(path, ca_bundle)
            try:
                current = await self._client.get(resource, self._name)
            except NotFound:
                if self._client_config is None:
                    self._log.warning(
                        "there is no such configuration; the chart makes it, or --register",
                        kind=resource.kind,
                        name=self._name,
                    )
                    continue
                await self._client.create(resource, make(wanted, name=self._name))
                self._log.info("registered", kind=resource.kind, name=self._name)
                continue
            if self._client_config is None and not _wants_ca(current["metadata"].get("annotations") or {}):
                self._log.info("its CA is not ours to write", kind=resource.kind, name=self._name)
                continue
            fresh = self._with_ca(current, make, wanted)
            if fresh != current:
                await self._client.update(resource, fresh)
                self._log.info("registration brought up to date", kind=resource.kind, name=self._name)

    def _with_ca(
        self,
        current: Mapping[str, Any],
        make: Callable[..., dict[str, Any]],
        client_config: Mapping[str, Any],
    ) -> dict[str, Any]:
        if self._client_config is not None:
            made = make(client_config, name=self._name)["webhooks"][0]
            there = (current.get("webhooks") or [{}])[0]
            return {**current, "webhooks": [{**there, **made}]}
        webhooks = [
            {**one, "clientConfig": {**one["clientConfig"], "caBundle": client_config["caBundle"]}}
            for one in current.get("webhooks") or ()
        ]
        return {**current, "webhooks": webhooks}


def _wants_ca(annotations: Mapping[str, str]) -> bool:
    """Whether a configuration that is not ours is to have our CA.

    Otherwise a replica of before writes its own over the one that came with a certificate of the user's.
    """
    return annotations.get(names.ANNOTATION_WANTS_CA) == "true"


def _trusts(configuration: Object, ca: bytes) -> bool:
    bundles = [one["clientConfig"].get("caBundle") or "" for one in configuration.field("webhooks") or ()]
    return all(ca in base64.b64decode(bundle) for bundle in bundles)


def _nowhere(path: str, ca_bundle: bytes) -> dict[str, Any]:
    """A clientConfig of which only the CA is used."""
    return manifests.by_url("https://unused", path, ca_bundle)
