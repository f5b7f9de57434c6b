"""A random key in a Secret of our own namespace, for keyed hashes (``controller_runtime.apimachinery.keyed_hash``)."""

from __future__ import annotations

import base64
import binascii
import secrets

from controller_runtime import resources
from controller_runtime.apimachinery.keyed_hash import KEY_BYTES
from controller_runtime.errors import AlreadyExists, ConfigError, Conflict, Forbidden, Invalid, NotFound
from controller_runtime.resources import ObjectClient

FIELD = "key"
"""The data field of the Secret that holds the random key."""
_TRIES = 5


class SecretKey:
    """Reads a key from a Secret; if the Secret or its key is missing, writes a random key.

    Nothing is cached, so a replaced key is used from the next read on. All processes that use the same Secret
    have the same key, because the first write wins.
    """

    def __init__(self, client: ObjectClient, *, namespace: str, name: str) -> None:
        """Create a reader; sends no request."""
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> bytes:
        """Return the key.

        Raises:
            ConfigError: a permission is missing, or the Secret's key is not valid; the message contains the
                next step.
            ApiError: the API server cannot be reached.
        """
        for _ in range(_TRIES):
            try:
                secret = await self._client.get(resources.SECRETS, self._name, namespace=self._namespace)
                held = (secret.get("data") or {}).get(FIELD)
                if held:
                    return self._decoded(held)
                data = {**(secret.get("data") or {}), FIELD: _random()}
                await self._client.update(resources.SECRETS, {**secret, "data": data})
            except NotFound:
                await self._create()
            except Conflict:
                continue  # another process has written a key
            except (Forbidden, Invalid) as error:
                raise ConfigError(
                    f"{self} cannot be read or written: {error.message}. {self._remedy}"
                ) from error
        raise ConfigError(f"{self} changes repeatedly: another program writes to it")

    async def _create(self) -> None:
        metadata = {"name": self._name, "namespace": self._namespace}
        body = {"metadata": metadata, "type": "Opaque", "data": {FIELD: _random()}}
        try:
            await self._client.create(resources.SECRETS, body, namespace=self._namespace)
        except AlreadyExists:
            return
        except Forbidden as error:
            raise ConfigError(f"{self} cannot be created: {error.message}. {self._remedy}") from error

    def _decoded(self, held: str) -> bytes:
        try:
            key = base64.b64decode(held, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) < KEY_BYTES:
            raise ConfigError(
                f"{self}: data.{FIELD} is not a key of at least {KEY_BYTES} bytes; delete it, and a new one is written"
            )
        return key

    @property
    def _remedy(self) -> str:
        return (
            f"Create it empty (kubectl -n {self._namespace} create secret generic {self._name}) "
            "and grant get and update on it"
        )

    def __str__(self) -> str:
        return f"Secret {self._namespace}/{self._name}"


def _random() -> str:
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
