"""Serves the webhook's own certificates and writes their CAs to the webhook configurations, by which the API server calls it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from controller_runtime import log, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find
from controller_runtime.tls.key_pairs import self_signed
from controller_runtime.tls.own_certificates import CertificateKeeper, Certificates
from controller_runtime.tls.reloader import CertificateReloader
from controller_runtime.util.repairs import Repairs
from webhook import manifests

_CONFIGURATIONS = (
    (resources.MUTATING_WEBHOOK_CONFIGURATIONS, manifests.MUTATE_PATH, manifests.mutating),
    (resources.VALIDATING_WEBHOOK_CONFIGURATIONS, manifests.VALIDATE_PATH, manifests.validating),
)

ClientConfig = Callable[[str, bytes], Mapping[str, Any]]
"""Function of a path and a CA bundle; returns a clientConfig."""


@dataclass(eq=False)
class Registrar:
    """Creates and updates the webhook configurations, or only writes the CA into the chart's configurations."""

    client: Client
    name: str
    """Name of both configurations."""
    client_config: ClientConfig | None
    """Where the API server finds the webhook; None: write only the CA, into existing configurations that request it."""

    def __post_init__(self) -> None:
        self._log = log.get_logger(component="registration")
        self.informers = [
            Informer(self.client, resource, field_selector=f"metadata.name={self.name}")
            for resource, _, _ in _CONFIGURATIONS
        ]
        """Informers of the configurations; the caller runs them."""
        self._repairs = Repairs()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` when a configuration is changed or deleted."""
        for informer in self.informers:
            informer.add_handler(on_update=lambda _old, _new: changed(), on_delete=lambda _gone: changed())

    def why_untrusted(self, ca: bytes) -> str | None:
        """Return why the API server does not trust certificates of this CA, for ``/readyz``; None if it trusts them.

        A missing configuration is a reason only with ``--register``. Configurations of the chart that do not
        request our CA are not checked.

        Args:
            ca: PEM of the CA.
        """
        for informer in self.informers:
            kind = informer.resource.kind
            if not informer.has_synced:
                return f"{kind} {self.name} has not been read yet"
            found = informer.store.get(self.name)
            if found is None:
                if self.client_config is not None:
                    return f"{kind} {self.name} has not been created yet"
            elif (self.client_config is not None or _requests_ca(found.annotations)) and not _trusts(
                found.field("webhooks"), ca
            ):
                return f"{kind} {self.name} does not have the webhook's CA yet"
        return None

    async def announce(self, ca_bundle: bytes) -> None:
        """Create or update the configurations; without a ``client_config`` only their CA, if they request it.

        Each call for the same CA counts as a repair. After a few repairs, a configuration that has the CA is left as another
        program wrote it for a time, because every update makes the caller announce again.

        Raises:
            ApiError: a request failed.
        """
        for resource, path, make in _CONFIGURATIONS:
            logger = self._log.bind(kind=resource.kind, name=self.name)
            wanted = (self.client_config or _ca_only)(path, ca_bundle)
            current = await find(self.client, resource, self.name)
            if current is None:
                if self.client_config is None:
                    logger.warning("webhook configuration not found; the chart or --register creates it")
                else:
                    await self.client.create(resource, make(wanted, name=self.name))
                    logger.info("webhook configuration created")
            elif self.client_config is None and not _requests_ca(
                current["metadata"].get("annotations") or {}
            ):
                logger.info("CA bundle is not written: the configuration does not request it")
            elif (fresh := self._with_ca(current, make, wanted)) != current:
                pause = self._repairs.wait(resource.kind, wanted)
                if pause and _trusts(current.get("webhooks"), ca_bundle):
                    logger.warning(
                        "another program changes the webhook configuration; not repaired yet", pause=pause
                    )
                    continue
                await self.client.update(resource, fresh)
                logger.info("webhook configuration updated")

    def _with_ca(
        self,
        current: Mapping[str, Any],
        make: Callable[..., dict[str, Any]],
        client_config: Mapping[str, Any],
    ) -> dict[str, Any]:
        if self.client_config is not None:
            created = make(client_config, name=self.name)["webhooks"][0]
            existing = (current.get("webhooks") or [{}])[0]
            for field in created.keys() & existing.keys() & {"namespaceSelector", "objectSelector"}:
                created[field] = _narrowed(created[field], existing[field] or {})
            return {**current, "webhooks": [{**existing, **created}]}
        webhooks = [
            {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": client_config["caBundle"]}}
            for webhook in current.get("webhooks") or ()
        ]
        return {**current, "webhooks": webhooks}


def _narrowed(selector: Mapping[str, Any], existing: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a selector with the expressions about other keys that another program added to the existing selector.

    The admissions enforcer of AKS adds expressions to every webhook configuration, and adds them again after each update.
    https://learn.microsoft.com/azure/aks/faq
    """
    wanted, added = selector.get("matchExpressions") or [], existing.get("matchExpressions") or []
    labels, other_labels = selector.get("matchLabels") or {}, existing.get("matchLabels") or {}
    if labels.items() <= other_labels.items() and all(expression in added for expression in wanted):
        return existing
    keys = {expression["key"] for expression in wanted}
    return {**selector, "matchExpressions": [*wanted, *(one for one in added if one.get("key") not in keys)]}


def _requests_ca(annotations: Mapping[str, str]) -> bool:
    """Report whether a configuration of the chart requests the CA that the webhook manages itself.

    After a user switches to their own certificate, an old replica must not overwrite the user's CA.
    """
    return annotations.get(names.ANNOTATION_WANTS_CA) == "true"


def _trusts(webhooks: Sequence[Mapping[str, Any]] | None, ca: bytes) -> bool:
    bundles = [webhook["clientConfig"].get("caBundle") or "" for webhook in webhooks or ()]
    return all(ca in base64.b64decode(bundle) for bundle in bundles)


def _ca_only(path: str, ca_bundle: bytes) -> dict[str, Any]:
    """Return a clientConfig from which the caller uses only the CA."""
    return manifests.by_url("https://unused", path, ca_bundle)


_ANNOUNCE_WAIT = 3.0
"""Seconds between seeing a CA in the configurations and using it, so that all API servers receive it."""


@dataclass(eq=False, repr=False, kw_only=True)
class WebhookCertificates(CertificateKeeper):
    """Serves a certificate of another CA only after the API server trusts this CA.

    Every replica serves and renews. The leader also writes the CAs to the webhook configurations.
    """

    name = "virtual-node-webhook"
    restores = False
    registrar: Registrar

    def __post_init__(self) -> None:
        super().__post_init__()
        # A temporary certificate, so that the server can listen before the Secret has been read.
        self.tls = CertificateReloader.from_pair(self_signed(self.name, hosts=self.hosts))
        self._served: Certificates | None = None
        self._leads = self._was_trusted = False
        # Every replica watches the configurations, because it is ready only when the API server trusts its certificate.
        self.registrar.on_change(self.recheck)

    async def lead(self) -> None:
        """Write the CAs to the webhook configurations until cancelled."""
        self._leads = True
        self.recheck()
        try:
            await asyncio.Event().wait()
        finally:
            self._leads = False

    def unready(self) -> str | None:
        """Return why the API server cannot call this replica yet; None if it can, or could once.

        If the CA is removed from the configurations later, unready replicas would not help.
        """
        if self._was_trusted:
            return None
        if self._served is None:
            return "there is no certificate yet"
        reason = self.registrar.why_untrusted(self._served.signer)
        self._was_trusted = reason is None
        return reason

    async def use(self, certificates: Certificates) -> None:
        """Serve the certificates if the API server trusts them, or if there are no earlier ones; as leader, announce the CAs.

        Raises:
            ApiError: a webhook configuration could not be written.
        """
        signer = certificates.signer
        before = self._served.signer if self._served is not None else signer
        if before == signer:
            self._serve(certificates)
        elif self.registrar.why_untrusted(signer) is None:
            await asyncio.sleep(_ANNOUNCE_WAIT)
            self._serve(certificates)
        if self._leads:
            # The CA served before stays trusted until the next check, because other replicas may change over later.
            bundle = certificates.bundle
            await self.registrar.announce(bundle if before in bundle else bundle + before)

    def _serve(self, certificates: Certificates) -> None:
        if self._served is None or self._served.serving != certificates.serving:
            self.tls.replace(certificates.serving)
        self._served = certificates
