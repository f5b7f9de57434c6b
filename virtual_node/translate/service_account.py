"""A pod's identity: token volumes rewritten so that tokens of the upper cluster reach the pod below.

The API server's admission gives every pod a projected volume ``kube-api-access-…`` of three sources: a bound
token, the cluster's CA and the namespace. Below, the token would be the lower cluster's. So each token source
becomes a key of a Secret that we fill by TokenRequest upstream, and the CA comes from a copy of the upper
cluster's ConfigMap under a name of its own (each cluster has a ``kube-root-ca.crt`` in every namespace).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller_runtime.api import names

ROOT_CA = "kube-root-ca.crt"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_ACCESS_VOLUME = "kube-api-access-"
_DEFAULT_EXPIRATION = 3600


@dataclass(frozen=True, slots=True)
class TokenRequestSpec:
    """One token that a pod's volumes ask for."""

    audience: str
    """Empty: the upper apiserver itself."""
    expiration_seconds: int
    key: str
    """Key of the Secret that carries the token below."""


def root_ca_name(cluster_id: str) -> str:
    """Name below of the copy of the upper cluster's root CA ConfigMap."""
    return f"{ROOT_CA}-{hashlib.sha256(cluster_id.encode()).hexdigest()[:8]}"


def token_secret_name(pod: Mapping[str, Any]) -> str:
    """Name below of the Secret with a pod's tokens: stable, and never longer than a name may be."""
    metadata = pod["metadata"]
    return f"{metadata['name'][:200].rstrip('.')}-token-{metadata['uid'][:8]}"


def token_requests(pod: Mapping[str, Any]) -> list[TokenRequestSpec]:
    """The tokens that a pod's volumes ask for, in order; empty when it wants none."""
    found: list[TokenRequestSpec] = []
    for source in _token_sources(pod["spec"]):
        found.append(
            TokenRequestSpec(
                audience=source.get("audience") or "",
                expiration_seconds=int(source.get("expirationSeconds") or _DEFAULT_EXPIRATION),
                key=f"token-{len(found)}",
            )
        )
    return found


def token_volume(pod: Mapping[str, Any]) -> str:
    """The first volume that asks for a token; empty when none does."""
    for volume in pod["spec"].get("volumes") or ():
        if any("serviceAccountToken" in one for one in (volume.get("projected") or {}).get("sources") or ()):
            return str(volume["name"])
    return ""


def token_secret(
    pod: Mapping[str, Any], tokens: Mapping[str, str], *, labels: Mapping[str, str], namespace: str
) -> dict[str, Any]:
    """The lower Secret with a pod's tokens.

    Args:
        pod: the upper pod.
        tokens: token by key, as ``token_requests`` names the keys.
        labels: ownership labels.
        namespace: the lower namespace.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": token_secret_name(pod),
            "namespace": namespace,
            "labels": {**labels, names.LABEL_TOKEN_OF: pod["metadata"]["uid"]},
        },
        "data": {key: base64.b64encode(token.encode()).decode() for key, token in tokens.items()},
    }


def with_upper_identity(spec: dict[str, Any], pod: Mapping[str, Any], *, cluster_id: str) -> None:
    """Rewrite a lower pod spec, in place, so that the pod keeps its upper identity."""
    secret = token_secret_name(pod)
    count = 0
    volumes = []
    for volume in spec.get("volumes") or ():
        sources = (volume.get("projected") or {}).get("sources")
        if not sources or not any("serviceAccountToken" in source for source in sources):
            volumes.append(volume)
            continue
        rewritten = []
        for source in sources:
            token = source.get("serviceAccountToken")
            config_map = source.get("configMap")
            if token is not None:
                item = {"key": f"token-{count}", "path": token["path"]}
                count += 1
                rewritten.append({"secret": {"name": secret, "items": [item]}})
            elif config_map is not None and config_map.get("name") == ROOT_CA:
                rewritten.append({"configMap": {**config_map, "name": root_ca_name(cluster_id)}})
            else:
                rewritten.append(source)
        volumes.append({**volume, "projected": {**volume["projected"], "sources": rewritten}})
    if volumes:
        spec["volumes"] = volumes
    spec["automountServiceAccountToken"] = False
    spec.pop("serviceAccountName", None)
    spec.pop("serviceAccount", None)


def with_lower_identity(spec: dict[str, Any]) -> None:
    """Rewrite a lower pod spec, in place, so that the lower cluster's admission supplies an identity."""
    injected = {volume["name"] for volume in spec.get("volumes") or () if is_injected(volume)}
    injected |= _legacy_token_volumes(spec)
    if injected:
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in injected]
        _drop_mounts(spec, lambda mount: mount["name"] in injected)
    spec.pop("serviceAccountName", None)
    spec.pop("serviceAccount", None)


def is_injected(volume: Mapping[str, Any]) -> bool:
    """Whether admission, not the user, made this volume."""
    return volume["name"].startswith(_ACCESS_VOLUME) and any(
        "serviceAccountToken" in source for source in (volume.get("projected") or {}).get("sources") or ()
    )


def _token_sources(spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for volume in spec.get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in source:
                yield source["serviceAccountToken"]


def _legacy_token_volumes(spec: Mapping[str, Any]) -> set[str]:
    """Secret volumes mounted where tokens belong: how admission did it before Kubernetes 1.22."""
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


def _drop_mounts(spec: dict[str, Any], unwanted: Callable[[Mapping[str, Any]], bool]) -> None:
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        containers = spec.get(kind)
        if not containers:
            continue
        spec[kind] = [
            {
                **container,
                "volumeMounts": [mount for mount in container["volumeMounts"] if not unwanted(mount)],
            }
            if container.get("volumeMounts")
            else container
            for container in containers
        ]
