"""How a pod reaches an API server: the token volume that API servers add to pods, and the Service that it asks for. No IO.

The volume is that of admission plug-in ServiceAccount. In a lower pod the virtual node has replaced the token by a
Secret, and the CA by a copy of the upper cluster's CA.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from clusterset.model import names

PREFIX = "kube-api-access-"
ROOT_CA = "kube-root-ca.crt"
_CERTIFICATES = re.compile(rf"{re.escape(ROOT_CA)}(-[0-9a-f]{{8}})?|openshift-service-ca\.crt")
"""Names of ConfigMaps in the volume. ``openshift-service-ca.crt`` exists in OpenShift only."""
_SHARED = re.compile(r"(?P<account>.+)-(?P<seconds>\d{1,10})-token-[0-9a-f]{8}")
_CERTIFICATE_FILES = {"ca.crt", "service-ca.crt"}
Choice = Literal["Auto", "Lower", "Upper"]
AUTO: Final = "Auto"
LOWER: Final = "Lower"
UPPER: Final = "Upper"
SERVICE = ("default", "kubernetes")
"""Namespace and name of the Service of the API server, which every cluster has."""
_SHOWN = 40
_CHOICES: Mapping[str, Choice] = {"auto": AUTO, "lower": LOWER, "upper": UPPER}


def token_secret_name(name: str, uid: str) -> str:
    """Return the name of the lower Secret with the tokens of an upper pod. It is stable and has a valid length."""
    return f"{name[:200].rstrip('.')}-token-{uid[:8]}"


def shared_token(
    node: str, cluster_id: str, namespace: str, account: str, *, audience: str, seconds: int
) -> tuple[str, str]:
    """Return the id and the lower Secret's name of a token that the pods of a virtual node share.

    Args:
        node: name of the virtual node, to which the token is bound.
        cluster_id: identity of the upper cluster.
        namespace: upper namespace of the account.
        account: name of the ServiceAccount.
        audience: audience of the token; empty: the upper API server.
        seconds: requested lifetime.
    """
    parts = (cluster_id, node, namespace, account, audience, str(seconds))
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()[:32]
    return digest, f"{account[:200].rstrip('.')}-{seconds}-token-{digest[:8]}"


def is_shared(of: str) -> bool:
    """Report whether the id of a token Secret is that of a token that pods share; otherwise it is the uid of its pod."""
    return bool(of) and "-" not in of


def is_injected(volume: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Return whether a volume contains only what API servers add.

    The volume's name proves nothing, because users can choose it.

    Args:
        volume: a volume of ``pod``.
        pod: an upper pod, or a lower pod with its ownership labels.
    """
    sources = (volume.get("projected") or {}).get("sources") or ()
    return (
        volume["name"].startswith(PREFIX)
        and any("serviceAccountToken" in source or "secret" in source for source in sources)
        and all(_is_injected_source(source, pod["metadata"]) for source in sources)
    )


def _is_injected_source(source: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    kinds = {kind: value for kind, value in source.items() if value is not None}
    if len(kinds) != 1:
        return False
    ((kind, value),) = kinds.items()
    files = [item.get("path") for item in value.get("items") or ()]
    match kind:
        case "serviceAccountToken":
            return value.get("path") == "token" and not value.get("audience")
        case "secret":
            return files == ["token"] and _is_token_secret(value.get("name") or "", metadata)
        case "configMap":
            return bool(_CERTIFICATES.fullmatch(value.get("name") or "")) and (
                len(files) == 1 and files[0] in _CERTIFICATE_FILES
            )
        case "downwardAPI":
            return files == ["namespace"]
        case _:
            return False


def _is_token_secret(name: str, metadata: Mapping[str, Any]) -> bool:
    """Report whether a lower pod with this metadata may get its token from a Secret of that name."""
    labels = metadata.get("labels") or {}
    if (uid := labels.get(names.LABEL_UPPER_UID)) and name == token_secret_name(metadata["name"], uid):
        return True
    found = _SHARED.fullmatch(name)
    if found is None:
        return False
    _, expected = shared_token(
        labels.get(names.LABEL_NODE, ""),
        labels.get(names.LABEL_UPPER_CLUSTER, ""),
        (metadata.get("annotations") or {}).get(names.ANNOTATION_UPPER_NAMESPACE, ""),
        found["account"],
        audience="",
        seconds=int(found["seconds"]),
    )
    return name == expected


def requested(annotations: Mapping[str, str]) -> Choice | None:
    """Return the choice in a pod's annotation, in any letter case; None: the annotation is missing or empty.

    Raises:
        ValueError: the value is not valid; the message names the annotation.
    """
    text = annotations.get(names.ANNOTATION_KUBERNETES_SERVICE) or ""
    if not text or (choice := _CHOICES.get(text.lower())) is not None:
        return choice if text else None
    raise ValueError(
        f"annotation {names.ANNOTATION_KUBERNETES_SERVICE}: {text[:_SHOWN]!r}: write upper, lower or auto"
    )
