"""User impersonation: ``users[].user.as`` of a kubeconfig, and its groups, uid and extra.

Source: Kubernetes' "User impersonation", and client-go's transport/round_trippers.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from multidict import CIMultiDict

from controller_runtime.auth.credentials import Credentials
from controller_runtime.auth.kubeconfig_file import Section
from controller_runtime.errors import ConfigError

USER = "Impersonate-User"
_PREFIX = "impersonate-"
_LEGAL_IN_NAMES = "!#$&'*+-.^_`|~"
"""Characters allowed in a header name besides letters and digits, without the percent sign."""


class Impersonating(Credentials):
    """Credentials of one user with the headers to impersonate another user."""

    def __init__(self, own: Credentials, headers: Mapping[str, str]) -> None:
        """Create credentials with headers from ``headers_of``; our user must be allowed to impersonate."""
        self._own = own
        self._impersonation = headers

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return our own headers and those of the impersonation."""
        together = CIMultiDict(await self._own.headers(refresh=refresh))
        self.certificate = self._own.certificate
        together.extend(self._impersonation)
        return together

    async def close(self) -> None:
        """Stop subprocesses of our own credentials."""
        await self._own.close()


def headers_of(user: Section) -> Mapping[str, str]:
    """Return the headers of a user's ``as``, ``as-uid``, ``as-groups`` and ``as-user-extra``, if any.

    Raises:
        ConfigError: a field is invalid, or ``as`` is missing.
    """
    headers: CIMultiDict[str] = CIMultiDict()
    name, uid, groups = user.text("as"), user.text("as-uid"), _texts(user, "as-groups")
    extra = user.section("as-user-extra")
    if name:
        headers.add(USER, _value(name, user.at("as")))
    elif uid or groups or extra is not None:
        raise ConfigError(f"{user.at('as')}: is missing; as-uid, as-groups and as-user-extra need a user")
    if uid:
        headers.add("Impersonate-Uid", _value(uid, user.at("as-uid")))
    for group in groups:
        headers.add("Impersonate-Group", _value(group, user.at("as-groups")))
    if extra is not None:
        for key in extra.values:
            header = f"Impersonate-Extra-{quote(str(key), safe=_LEGAL_IN_NAMES)}"
            for value in _texts(extra, key):
                headers.add(header, _value(value, extra.at(key)))
    return headers


def merged(ours: Mapping[str, str], request: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return our headers, overridden by a request's. If those impersonate, our impersonation headers are removed."""
    if not request:
        return ours
    together = CIMultiDict(ours)
    if USER in request:
        for name in [name for name in together if name.lower().startswith(_PREFIX)]:
            together.popall(name, None)
    together.update(request)
    return together


def _texts(section: Section, name: str) -> list[str]:
    found = section.values.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ConfigError(f"{section.at(name)}: must be a list of strings")
    return found


def _value(text: str, where: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{where}: {text!r} has characters that an HTTP header must not have")
    return text
