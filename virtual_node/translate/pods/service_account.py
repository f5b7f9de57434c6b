"""A pod's identity: token volumes are rewritten so that lower pods get tokens of the upper cluster.

The API server's admission gives every pod a projected volume ``kube-api-access-…`` with three sources: a
bound token, the cluster's CA and the namespace. In the lower cluster, that would be a token of the lower
cluster. Therefore each token source becomes a key of a Secret that we fill by TokenRequest in the upper
cluster. The CA comes from a copy of the upper cluster's ConfigMap under another name, because each cluster
has a ``kube-root-ca.crt`` in every namespace.

The lower Secrets from which a pod gets its tokens of the upper cluster: names, keys, content, ownership.

By default each pod has a Secret of its own, with tokens that are bound to the upper pod. With
``identities.tokens: node`` the pods of a virtual node share one Secret per ServiceAccount, audience and lifetime, with
a token that is bound to the Node.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterset.model import names
from clusterset.model.pod import api_access
from clusterset.model.pod.conditions import CONTAINER_KINDS
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.objects.references import entry_digests
from virtual_node.translate.pods import pod_certificates
from virtual_node.translate.pods.downward_api import with_sources

ROOT_CA = api_access.ROOT_CA
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


@functools.lru_cache(maxsize=16)
def root_ca_name(cluster_id: str) -> str:
    """Return the name of the lower copy of the upper cluster's root CA ConfigMap."""
    return f"{ROOT_CA}-{hashlib.sha256(cluster_id.encode()).hexdigest()[:8]}"


def with_upper_identity(spec: dict[str, Any], pod: Mapping[str, Any], options: PodOptions) -> None:
    """Rewrite a lower pod spec, in place, so that the pod uses its tokens of the upper cluster."""
    places = iter(places_of(pod, options))

    def from_secret(source: Mapping[str, Any]) -> Mapping[str, Any]:
        token = source.get("serviceAccountToken")
        if token is None:
            return source
        secret, key = next(places)
        item = {"key": key, "path": token["path"]}
        if (user := token.get("user")) is not None:
            item["user"] = user
        return {"secret": {"name": secret, "items": [item]}}

    if volumes := spec.get("volumes"):
        spec["volumes"] = [with_sources(volume, from_secret) for volume in volumes]
    with_upper_root_ca(spec, cluster_id=options.owner.cluster_id)
    spec["automountServiceAccountToken"] = False


def with_token_modes(spec: dict[str, Any], pod: Mapping[str, Any], options: PodOptions) -> None:
    """Set the modes of the files with tokens, anchors and certificates of a lower pod spec, in place; after overrides, which may change its users.

    Args:
        spec: of the lower pod, after ``with_upper_identity`` and ``with_upper_certificates``.
        pod: the upper pod.
        options: translation options.
    """
    if (mode := _token_mode(spec)) is None:
        return
    secrets = {pod_certificates.secret_name(pod["metadata"]["name"], pod["metadata"]["uid"])}
    if options.service_accounts:
        secrets |= {secret for secret, _ in places_of(pod, options)}

    def with_mode(source: Mapping[str, Any]) -> Mapping[str, Any]:
        secret = source.get("secret")
        if not secret or secret.get("name") not in secrets or not secret.get("items"):
            return source  # without items, it is a source of the user, who has guessed the name of the Secret
        return {**source, "secret": {**secret, "items": [{**item, "mode": mode} for item in secret["items"]]}}

    if volumes := spec.get("volumes"):
        spec["volumes"] = [with_sources(volume, with_mode) for volume in volumes]


def _token_mode(spec: Mapping[str, Any]) -> int | None:
    """Return the mode of the token files of a lower pod; None: the ``defaultMode`` of their volume.

    A kubelet gives the file of a token to the user of the containers, with mode 0600, or lets the group ``fsGroup`` read
    it. The file of a Secret always belongs to root. So it gets the narrowest mode with which every container can read it:

    - ``fsGroup``: 0600, to which the kubelet adds that group and its right to read, as for a token.
    - all containers run as one user: 0600 for root. For another user, 0640 if all containers are in group root, otherwise 0644.
    - otherwise: ``defaultMode``, as for a token.

    Source: kubelet ``pkg/volume/projected``, ``collectData``, and ``pkg/volume/util``, ``FsUserFrom``.
    """
    of_pod = spec.get("securityContext") or {}
    if of_pod.get("fsGroup") is not None:
        return 0o600
    contexts = [
        {**of_pod, **{key: value for key, value in own.items() if value is not None}}
        for kind in ("initContainers", "containers")
        for container in spec.get(kind) or ()
        for own in (container.get("securityContext") or {},)
    ]
    users = {one.get("runAsUser") for one in contexts}
    if len(users) != 1 or None in users:
        return None
    if users == {0}:
        return 0o600
    is_in_root = 0 in (of_pod.get("supplementalGroups") or ()) or all(
        one.get("runAsGroup") == 0 for one in contexts
    )
    return 0o640 if is_in_root else 0o644


def with_upper_root_ca(spec: dict[str, Any], *, cluster_id: str) -> None:
    """Make references to the root CA ConfigMap refer to the copy of the upper cluster's ConfigMap, in place."""
    name = root_ca_name(cluster_id)

    def renamed(source: Mapping[str, Any], field: str) -> Mapping[str, Any]:
        reference = source.get(field)
        if not reference or reference.get("name") != ROOT_CA:
            return source
        return {**source, field: {**reference, "name": name}}

    if spec.get("volumes"):
        of_volume = functools.partial(renamed, field="configMap")
        spec["volumes"] = [with_sources(of_volume(volume), of_volume) for volume in spec["volumes"]]
    for kind in CONTAINER_KINDS:
        if spec.get(kind):
            spec[kind] = [_with_sources(container, renamed) for container in spec[kind]]


def _with_sources(
    container: Mapping[str, Any], renamed: Callable[[Mapping[str, Any], str], Mapping[str, Any]]
) -> Mapping[str, Any]:
    changed: dict[str, Any] = {}
    if sources := container.get("envFrom"):
        changed["envFrom"] = [renamed(source, "configMapRef") for source in sources]
    if variables := container.get("env"):
        changed["env"] = [
            {**variable, "valueFrom": renamed(source, "configMapKeyRef")}
            if (source := variable.get("valueFrom"))
            else variable
            for variable in variables
        ]
    return {**container, **changed} if changed else container


def with_lower_identity(spec: dict[str, Any]) -> None:
    """Rewrite a lower pod spec, in place, so that the lower cluster's admission adds a ServiceAccount token."""
    injected = {volume["name"] for volume in spec.get("volumes") or () if is_injected(volume)}
    injected |= _legacy_token_volumes(spec)
    if injected:
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in injected]
        for kind in CONTAINER_KINDS:
            if spec.get(kind):
                spec[kind] = [_without_mounts(container, injected) for container in spec[kind]]


def is_injected(volume: Mapping[str, Any]) -> bool:
    """Report whether admission, not the user, added a volume."""
    return volume["name"].startswith(api_access.PREFIX) and requests_token(volume)


def _legacy_token_volumes(spec: Mapping[str, Any]) -> set[str]:
    """Return the Secret volumes mounted at the token path, as admission added them before Kubernetes 1.22."""
    mounted = {
        mount["name"]
        for container in (spec.get("containers") or ())
        for mount in container.get("volumeMounts") or ()
        if mount.get("mountPath") == MOUNT_PATH
    }
    return {
        volume["name"]
        for volume in spec.get("volumes") or ()
        if volume["name"] in mounted and "secret" in volume
    }


def _without_mounts(container: Mapping[str, Any], volumes: Collection[str]) -> Mapping[str, Any]:
    if not (mounts := container.get("volumeMounts")):
        return container
    return {**container, "volumeMounts": [mount for mount in mounts if mount["name"] not in volumes]}


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
    return _shared_secrets(pod, requests, options) if options.shared_tokens else _own_secrets(pod, requests)


def possible_token_secrets(pod: Mapping[str, Any], options: PodOptions) -> list[TokenSecret]:
    """Return the Secrets that a pod may use: its own and shared ones, because ``shared_tokens`` may have changed."""
    return _any_secrets(pod, options) if options.service_accounts else []


def mounted_token_secrets(
    pod: Mapping[str, Any], mounted: Collection[str], options: PodOptions
) -> list[TokenSecret]:
    """Return the Secrets of an upper pod's tokens among those that its lower pod mounts (``mounted_names``)."""
    # Searched even if new pods get no tokens now, because an older lower pod may have them.
    return [secret for secret in _any_secrets(pod, options) if secret.name in mounted]


def _any_secrets(pod: Mapping[str, Any], options: PodOptions) -> list[TokenSecret]:
    requests = token_requests(pod)
    return [*_own_secrets(pod, requests), *_shared_secrets(pod, requests, options)]


def _own_secrets(pod: Mapping[str, Any], requests: Sequence[TokenRequestSpec]) -> list[TokenSecret]:
    if not requests:
        return []
    metadata = pod["metadata"]
    name = api_access.token_secret_name(metadata["name"], metadata["uid"])
    return [TokenSecret(metadata["uid"], name, tuple(requests))]


def _shared_secrets(
    pod: Mapping[str, Any], requests: Sequence[TokenRequestSpec], options: PodOptions
) -> list[TokenSecret]:
    return list(dict.fromkeys(_shared(pod, request, options) for request in requests))


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
    parts = {
        "data": entry_digests(secret),
        "labels": metadata.get("labels"),
        "annotations": metadata.get("annotations"),
    }
    return array(
        "q",
        (
            hash((field, key, value))
            for field, entries in parts.items()
            for key, value in (entries or {}).items()
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
