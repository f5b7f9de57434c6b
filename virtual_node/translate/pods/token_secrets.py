"""The lower Secrets from which a pod gets its tokens of the upper cluster: names, keys, content, ownership.

By default each pod has a Secret of its own, with tokens that are bound to the upper pod. With
``identities.tokens: node`` the pods of a virtual node share one Secret per ServiceAccount, audience and lifetime, with
a token that is bound to the Node.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterset.model import names
from clusterset.model.pod import api_access
from virtual_node.translate.base.options import PodOptions

_DEFAULT_EXPIRATION = 3600


@dataclass(frozen=True, slots=True)
class TokenRequestSpec:
    """A token that a pod's volumes request."""

    audience: str
    """Audience of the token; empty: the upper API server."""
    expiration_seconds: int
    key: str
    """Key of the lower Secret that holds the token."""


@dataclass(frozen=True, slots=True)
class TokenSecret:
    """A lower Secret with tokens."""

    id: str
    """Uid of the upper pod that the tokens are bound to; a hash if pods share the Secret."""
    name: str
    requests: tuple[TokenRequestSpec, ...]
    node: str = ""
    """Virtual node that the tokens are bound to; empty: they are bound to the pod."""


def token_secrets(pod: Mapping[str, Any], options: PodOptions) -> list[TokenSecret]:
    """Return the Secrets that a new lower pod gets its tokens from; empty: the pod requests no token."""
    requests = token_requests(pod)
    if not requests:
        return []
    if not options.shared_tokens:
        metadata = pod["metadata"]
        name = api_access.token_secret_name(metadata["name"], metadata["uid"])
        return [TokenSecret(metadata["uid"], name, tuple(requests))]
    return list(dict.fromkeys(_shared(pod, request, options) for request in requests))


def possible_token_secrets(pod: Mapping[str, Any], options: PodOptions) -> Iterator[TokenSecret]:
    """Yield the Secrets that a pod may use: its own and shared ones, because ``shared_tokens`` may have changed."""
    if options.service_accounts:
        for is_shared in (False, True):
            yield from token_secrets(pod, replace(options, shared_tokens=is_shared))


def mounted_token_secrets(
    pod: Mapping[str, Any], lower: Mapping[str, Any], options: PodOptions
) -> list[TokenSecret]:
    """Return the Secrets that an existing lower pod of an upper pod gets its tokens from."""
    mounted = mounted_names(lower["spec"])
    # Searched even if new pods get no tokens now, because an older lower pod may have them.
    known = possible_token_secrets(pod, replace(options, service_accounts=True))
    return [secret for secret in known if secret.name in mounted]


def mounted_names(spec: Mapping[str, Any]) -> set[str]:
    """Return the names of the Secrets that a pod's projected volumes contain."""
    return {
        (source.get("secret") or {}).get("name") or ""
        for volume in spec.get("volumes") or ()
        for source in _sources(volume)
    }


def places_of(pod: Mapping[str, Any], options: PodOptions) -> list[tuple[str, str]]:
    """Return name and key of the Secret for each token that a pod's volumes request, in order."""
    if options.shared_tokens:
        shared = [_shared(pod, request, options) for request in token_requests(pod)]
        return [(secret.name, secret.requests[0].key) for secret in shared]
    return [
        (secret.name, request.key) for secret in token_secrets(pod, options) for request in secret.requests
    ]


def _shared(pod: Mapping[str, Any], request: TokenRequestSpec, options: PodOptions) -> TokenSecret:
    owner = options.owner
    of, name = api_access.shared_token(
        owner.node_name,
        owner.cluster_id,
        pod["metadata"]["namespace"],
        account_of(pod),
        audience=request.audience,
        seconds=request.expiration_seconds,
    )
    return TokenSecret(of, name, (replace(request, key="token-0"),), node=owner.node_name)


def account_of(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's ServiceAccount."""
    return pod["spec"].get("serviceAccountName") or "default"


def token_owner(name: str, labels: Mapping[str, str]) -> str:
    """Return the id (``TokenSecret.id``) of an owned lower Secret with tokens; empty: not a token Secret.

    The label alone does not suffice, because earlier releases copied such a label from users' Secrets.
    """
    of = labels.get(names.LABEL_TOKEN_OF, "")
    return of if of and name.endswith(f"-token-{of[:8]}") else ""


def is_token_secret_of(name: str, labels: Mapping[str, str], of: str) -> bool:
    """Report whether an owned lower Secret is the token Secret with id ``of``, by its name and one of two labels.

    Copies of users' Secrets are never accepted, whatever their name, because neither of their labels has the
    id.
    """
    is_named_so = name.endswith(f"-token-{of[:8]}")
    return is_named_so and of in {labels.get(names.LABEL_TOKEN_OF), labels.get(names.LABEL_UPPER_UID)}


def fingerprint(secret: Mapping[str, Any]) -> array[int]:
    """Return hashes of the entries of a token Secret's data, labels and annotations; a set takes five times the memory."""
    metadata = secret["metadata"]
    parts = (("data", secret), ("labels", metadata), ("annotations", metadata))
    return array(
        "q",
        (
            hash((field, key, value))
            for field, where in parts
            for key, value in (where.get(field) or {}).items()
        ),
    )


def token_requests(pod: Mapping[str, Any]) -> list[TokenRequestSpec]:
    """Return the tokens that a pod's volumes request, in order."""
    requested = [
        source["serviceAccountToken"]
        for volume in pod["spec"].get("volumes") or ()
        for source in _sources(volume)
        if "serviceAccountToken" in source
    ]
    return [
        TokenRequestSpec(
            audience=source.get("audience") or "",
            expiration_seconds=int(source.get("expirationSeconds") or _DEFAULT_EXPIRATION),
            key=f"token-{number}",
        )
        for number, source in enumerate(requested)
    ]


def token_volume(pod: Mapping[str, Any]) -> str:
    """Return the name of the first volume that requests a token; empty: there is none."""
    volumes = pod["spec"].get("volumes") or ()
    return next((str(volume["name"]) for volume in volumes if requests_token(volume)), "")


def requests_token(volume: Mapping[str, Any]) -> bool:
    """Report whether a volume requests a token."""
    return any("serviceAccountToken" in source for source in _sources(volume))


def body(
    secret: TokenSecret, tokens: Mapping[str, str], *, labels: Mapping[str, str], namespace: str, expires: str
) -> dict[str, Any]:
    """Return the lower Secret with tokens.

    Args:
        secret: the Secret's name and id.
        tokens: token by key; ``token_requests`` returns the keys.
        labels: ownership labels.
        namespace: the lower namespace.
        expires: when the first token expires.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": secret.name,
            "namespace": namespace,
            "labels": {**labels, names.LABEL_TOKEN_OF: secret.id},
            "annotations": {names.ANNOTATION_TOKEN_EXPIRES: expires},
        },
        "data": {key: base64.b64encode(token.encode()).decode() for key, token in tokens.items()},
    }


def _sources(volume: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (volume.get("projected") or {}).get("sources") or ()
