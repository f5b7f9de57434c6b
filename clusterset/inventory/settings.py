"""The setting ``clusterProfiles``, which the virtual node and the multi-scheduler share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from clusterset.model.rights import PROFILE_NAMESPACE
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.decoding import ConfigStruct
from controller_runtime.resources import CLUSTER_PROFILES
from controller_runtime.rights import Right

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OWN = ("name", "kubeconfig", "context", "server", "tokenSecrets", "nodeName", "nodes", "port")
"""Fields of a cluster that each ClusterProfile needs with its own value, or that have no meaning for it."""


class ClusterProfiles(ConfigStruct, kw_only=True):
    """ClusterProfile objects of the upper cluster that become lower clusters while the process runs."""

    namespace: Annotated[str, Meta(pattern=f"^{LABEL}$", max_length=63)]
    """Namespace of the ClusterProfiles. Users who can write ClusterProfiles there decide to which servers the credentials of
    the providers are sent."""
    label_selector: str = ""
    """Label selector of the ClusterProfiles to use, as in ``kubectl get --selector``. Empty: all of the namespace."""
    names: list[str] = []
    """Names of the only ClusterProfiles that may be used. Empty: every selected one."""
    providers_file: Annotated[str, Meta(min_length=1)]
    """JSON or YAML file with the credential plugins: ``{"providers": [{"name": ..., "execConfig": {...}}]}``. Only this file
    names commands; a ClusterProfile cannot."""
    name_prefix: Annotated[str, Meta(pattern="^([a-z0-9][-a-z0-9]*)?$", max_length=30)] = "profile-"
    """Prefix of the name of the lower cluster and of its virtual node; the name of the ClusterProfile follows."""
    defaults: dict[str, Any] = {}
    """Settings of each of these lower clusters: fields of ``clusters[]`` except ``name``, ``kubeconfig``, ``context``,
    ``tokenSecrets``, ``nodeName``, ``nodes`` and ``port``."""


PROFILES = (
    Right(
        CLUSTER_PROFILES.group,
        CLUSTER_PROFILES.plural,
        ("list", "watch"),
        "lower clusters of an inventory (clusterProfiles)",
        "",
        PROFILE_NAMESPACE,
    ),
)
"""Rights that a program with ``clusterProfiles`` needs in the upper cluster."""


def problems(settings: ClusterProfiles) -> Iterator[str]:
    """Yield what is wrong with the setting beyond its types, each as ``field: problem``."""
    try:
        matching.parse_selector(settings.label_selector)
    except ValueError as error:
        yield f"clusterProfiles.labelSelector: {error}"
    yield from (
        f"clusterProfiles.defaults.{field}: cannot be a default, because it differs for each cluster"
        for field in _OWN
        if field in settings.defaults
    )
