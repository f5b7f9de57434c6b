"""The rules about volumes: types, directories of the node, inline CSI drivers, certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from clusterset.model.pod import api_access
from clusterset.model.policy.findings import NOT_SET, FieldValue
from clusterset.model.policy.rules import VOLUME_TYPES, matches

Pod = Mapping[str, Any]
RULED_ELSEWHERE = {"hostPath": "hostPaths", "csi": "csiDrivers", "ephemeral": "persistentVolumeClaim"}
"""Types that ``volumeTypes`` cannot name, and what to write instead."""
_PROJECTIONS = (
    "clusterTrustBundle",
    "configMap",
    "downwardAPI",
    "podCertificate",
    "secret",
    "serviceAccountToken",
)


def volume_types(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield volumes of forbidden types, and sources of projected volumes that this release does not know."""
    for where, volume in _volumes(pod):
        for kind in _kinds(volume):
            is_token = kind == "projected" and api_access.is_injected(volume, pod)
            # A generic ephemeral volume counts as a PVC, because the virtual node creates one for it. So the
            # virtual node and the fit agent, which sees the volume itself, report the same field.
            ruled = RULED_ELSEWHERE.get(kind, kind)
            if kind not in {"hostPath", "csi"} and ruled not in allowed and not is_token:
                yield f"{where}.{ruled}", ruled
        for source in _sources(volume):
            for kind in source:
                if kind not in _PROJECTIONS:
                    yield f"{where}.projected.sources[{kind}]", kind


def host_paths(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield directories of the node that are not in an allowed directory."""
    for where, volume in _volumes(pod):
        if (source := volume.get("hostPath")) is None:
            continue
        path = PurePosixPath(source.get("path") or "/")
        if ".." in path.parts or not any(path.is_relative_to(directory) for directory in allowed):
            yield f"{where}.hostPath.path", str(path)


def csi_drivers(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield drivers of inline volumes that are not allowed."""
    for where, volume in _volumes(pod):
        if (source := volume.get("csi")) is not None and not matches(source.get("driver") or "", allowed):
            yield f"{where}.csi.driver", source.get("driver") or NOT_SET


def pod_certificates(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield signers of the lower cluster that the pod requests a certificate from and that are not allowed."""
    for where, volume in _volumes(pod):
        for source in _sources(volume):
            signer = (source.get("podCertificate") or {}).get("signerName") or ""
            if source.get("podCertificate") is not None and not matches(signer, allowed):
                yield f"{where}.projected.sources[podCertificate].signerName", signer or NOT_SET


def problems(where: str, types: Sequence[str], directories: Sequence[str]) -> Iterator[str]:
    """Yield errors of ``volumeTypes`` and ``hostPaths``, each as ``field: what``."""
    for kind in types:
        if kind in RULED_ELSEWHERE:
            yield f"{where}.volumeTypes: {kind}: write it as {RULED_ELSEWHERE[kind]}"
        elif kind not in {*VOLUME_TYPES, "*"}:
            yield f"{where}.volumeTypes: unknown {kind!r}, known are {', '.join(VOLUME_TYPES)}"
    for directory in directories:
        if not directory.startswith("/") or ".." in PurePosixPath(directory).parts:
            yield f"{where}.hostPaths: {directory!r} is not an absolute path without '..'"


def _volumes(pod: Pod) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for volume in pod["spec"].get("volumes") or ():
        yield f"spec.volumes[{volume['name']}]", volume


def _kinds(volume: Mapping[str, Any]) -> list[str]:
    """Return the source types of a volume; without any it is an emptyDir, the API server's default."""
    return [kind for kind, source in volume.items() if kind != "name" and source is not None] or ["emptyDir"]


def _sources(volume: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (volume.get("projected") or {}).get("sources") or ()
