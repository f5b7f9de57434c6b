"""The API resources that this project uses, and their URLs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from controller_runtime.errors import NotFound

_LONGEST = 253
"""Maximum length of an object's name. Servers refuse much longer URLs with other errors than NotFound."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the Kubernetes API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return group and version, such as ``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Return plural and group, such as ``pods`` or ``deployments.apps``, for logs and metrics."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(
        self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the URL path of the collection, an object, or an object's subresource.

        Args:
            namespace: the namespace; None or empty: the collection of all namespaces. Ignored for
                cluster-scoped resources.
            name: the object's name; None: the collection.
            subresource: such as ``status``, ``binding`` or ``eviction``.

        Raises:
            NotFound: no object can have the name: it is empty, ``.`` or ``..``, too long, or has a slash or a percent sign.
                Servers or proxies would read it as another path. Users can write such names into references, so
                callers handle them like names of deleted objects.
            ValueError: a namespaced object without a namespace.
        """
        for what, value in (("namespace", namespace or "-"), ("name", "-" if name is None else name)):
            if len(value) > _LONGEST:
                raise _no_object(f"{self.kind}: no object can have a {what} of {len(value)} characters")
            if not value or "/" in value or "%" in value or value in {".", ".."}:
                raise _no_object(f"{self.kind}: no object can have the {what} {value!r}")
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and not namespace:
                raise ValueError(f"{self.kind} {name}: namespace is missing")
            parts.append(quote(name, safe=""))
            if subresource:
                parts.append(subresource)
        return "/".join(parts)


class ObjectClient(Protocol):
    """The methods of ``client.Client`` for packages that must not import ``client``."""

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """Return an object."""

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        """Create an object."""

    async def update(self, resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; its resourceVersion is the precondition."""


def _no_object(message: str) -> NotFound:
    """Return the error with a Status, as an API server would send it for an object that does not exist."""
    status = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": message}
    return NotFound(message, code=404, reason="NotFound", status=status)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_CIDRS = Resource("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CERTIFICATE_SIGNING_REQUESTS = Resource(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
)
CLUSTER_TRUST_BUNDLES = tuple(
    Resource("certificates.k8s.io", version, "clustertrustbundles", "ClusterTrustBundle", namespaced=False)
    for version in ("v1", "v1beta1")
)
"""The newest version first; those before 1.37 do not serve v1."""
POD_CERTIFICATE_REQUESTS = tuple(
    Resource("certificates.k8s.io", version, "podcertificaterequests", "PodCertificateRequest")
    for version in ("v1", "v1beta1")
)
"""As ``CLUSTER_TRUST_BUNDLES``."""
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVICTION_REQUESTS = Resource("lifecycle.k8s.io", "v1alpha1", "evictionrequests", "EvictionRequest")
GATEWAYS = Resource("gateway.networking.k8s.io", "v1", "gateways", "Gateway")
HTTP_ROUTES = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
INGRESSES = Resource("networking.k8s.io", "v1", "ingresses", "Ingress")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
NATIVE_POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
JOBS = Resource("batch", "v1", "jobs", "Job")
SERVICE_EXPORTS = Resource("multicluster.x-k8s.io", "v1alpha1", "serviceexports", "ServiceExport")
CLUSTER_PROFILES = Resource("multicluster.x-k8s.io", "v1alpha1", "clusterprofiles", "ClusterProfile")
