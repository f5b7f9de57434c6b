"""Serves the webhook's own certificates and writes their CAs to the webhook configurations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from controller_runtime.tls.own_certificates import CertificateKeeper, Certificates
from controller_runtime.tls.reloader import CertificateReloader, self_signed
from webhook.registration import Registrar

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
