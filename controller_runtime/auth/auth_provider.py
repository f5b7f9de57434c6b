"""Signs in ``auth-provider`` users of kubeconfigs (OpenID Connect).

Only this module uses kubernetes-asyncio. Importing that package loads 850 modules of generated models (37 MB, half a
second), so it is imported only for such a user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from controller_runtime.auth.credentials import REREAD_SECONDS, Credentials
from controller_runtime.auth.kubeconfig_file import Section
from controller_runtime.errors import ConfigError


class AuthProvider(Credentials):
    """Signs in with kubernetes-asyncio: OpenID Connect with refresh tokens, and its other providers.

    A refresh token that the issuer replaces is kept in memory only; the kubeconfig is not written.
    """

    def __init__(self, user: Section) -> None:
        self._source = user.at("auth-provider")
        # kubernetes-asyncio stores renewed tokens in this dict and checks their expiry on every call.
        self._whole: dict[str, Any] = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://unused"}}],
            "users": [{"name": "u", "user": {"auth-provider": dict(user.values["auth-provider"])}}],
        }
        self._headers: dict[str, str] | None = None
        self._asked_at = 0.0
        self._lock = asyncio.Lock()

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the headers to send now; check expiry once a minute, one caller at a time."""
        is_due = asyncio.get_running_loop().time() - self._asked_at >= REREAD_SECONDS
        if self._headers is not None and not refresh and not is_due:
            return self._headers
        before = self._headers
        async with self._lock:
            if self._headers is before or self._headers is None:
                await self._sign_in()
        assert self._headers is not None
        return self._headers

    async def _sign_in(self) -> None:
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - heavy; see the module's docstring
        from kubernetes_asyncio.config import load_kube_config_from_dict  # noqa: PLC0415

        configuration = Configuration()
        try:
            await load_kube_config_from_dict(self._whole, client_configuration=configuration)
        except Exception as error:
            if self._headers is None:
                words = " ".join(str(error).split()) or type(error).__name__
                raise ConfigError(f"{self._source}: {words}") from error
        token = configuration.api_key.get("BearerToken", "")
        if token:
            self._headers = {"Authorization": token}
        elif self._headers is None:
            raise ConfigError(f"{self._source}: this provider is not supported")
        self._asked_at = asyncio.get_running_loop().time()
