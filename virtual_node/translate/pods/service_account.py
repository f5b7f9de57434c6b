"""A pod's identity: token volumes are rewritten so that lower pods get tokens of the upper cluster.

The API server's admission gives every pod a projected volume ``kube-api-access-…`` with three sources: a
bound token, the cluster's CA and the namespace. In the lower cluster, that would be a token of the lower
cluster. Therefore each token source becomes a key of a Secret that we fill by TokenRequest in the upper
cluster. The CA comes from a copy of the upper cluster's ConfigMap under another name, because each cluster
has a ``kube-root-ca.crt`` in every namespace.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from clusterset.model.pod import api_access
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.pods.downward_api import with_sources
from virtual_node.translate.pods.token_secrets import places_of, requests_token

ROOT_CA = api_access.ROOT_CA
_CONTAINER_KINDS = ("containers", "initContainers", "ephemeralContainers")
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
    """Set the modes of the token files of a lower pod spec, in place; after overrides, which may change its users.

    Args:
        spec: of the lower pod, after ``with_upper_identity``.
        pod: the upper pod.
        options: translation options.
    """
    if not options.service_accounts or (mode := _token_mode(spec)) is None:
        return
    secrets = {secret for secret, _ in places_of(pod, options)}

    def with_mode(source: Mapping[str, Any]) -> Mapping[str, Any]:
        secret = source.get("secret")
        if not secret or secret.get("name") not in secrets:
            return source
        return {**source, "secret": {**secret, "items": [{**item, "mode": mode} for item in secret["items"]]}}

    if secrets:
        spec["volumes"] = [with_sources(volume, with_mode) for volume in spec["volumes"]]


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
    for kind in _CONTAINER_KINDS:
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
        for kind in _CONTAINER_KINDS:
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
