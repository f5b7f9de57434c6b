"""Every name of another object in a pod's spec, and its treatment in the lower cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from clusterset.model.pod import spec_fields
from clusterset.model.pod.conditions import claim_names
from tests.pod_schema import placed, pod_fields
from tests.unit.virtual_node.translate.pods.pods import OPTIONS, upper_pod
from virtual_node.translate.pods import dependencies, lower_pod, service_account

COPIED = "a copy of ours has the name in the lower cluster"
CLAIM = "a lower claim of ours has the name"
DROPPED = "not in the lower pod"
REFUSED = "such a pod is not mirrored"
OWN = "means a part of the pod itself"
NO_OBJECT = "names no object of the lower cluster's API"
POLICY = "an object or a signer of the lower cluster, which its policy or its admission allows"

_CONTAINERS = ("containers[]", "initContainers[]", "ephemeralContainers[]")
TREATMENT = {
    **{
        f"{container}.{field}": COPIED
        for container in _CONTAINERS
        for field in (
            "env[].valueFrom.configMapKeyRef.name",
            "env[].valueFrom.secretKeyRef.name",
            "envFrom[].configMapRef.name",
            "envFrom[].secretRef.name",
        )
    },
    "imagePullSecrets[].name": COPIED,
    "volumes[].azureFile.secretName": COPIED,
    "volumes[].cephfs.secretRef.name": COPIED,
    "volumes[].cinder.secretRef.name": COPIED,
    "volumes[].configMap.name": COPIED,
    "volumes[].csi.nodePublishSecretRef.name": COPIED,
    "volumes[].flexVolume.secretRef.name": COPIED,
    "volumes[].iscsi.secretRef.name": COPIED,
    "volumes[].projected.sources[].configMap.name": COPIED,
    "volumes[].projected.sources[].secret.name": COPIED,
    "volumes[].rbd.secretRef.name": COPIED,
    "volumes[].scaleIO.secretRef.name": COPIED,
    "volumes[].secret.secretName": COPIED,
    "volumes[].storageos.secretRef.name": COPIED,
    "volumes[].persistentVolumeClaim.claimName": CLAIM,
    "nodeName": DROPPED,
    "evictionResponders[].name": DROPPED,
    "schedulerName": DROPPED,
    "schedulingGates[].name": DROPPED,
    "schedulingGroup.podGroupName": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.metadata.generateName": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.metadata.name": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.metadata.ownerReferences[].name": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.spec.dataSource.name": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.spec.dataSourceRef.name": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.spec.storageClassName": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.spec.volumeAttributesClassName": DROPPED,
    "volumes[].ephemeral.volumeClaimTemplate.spec.volumeName": DROPPED,
    "resourceClaims[].name": OWN,
    "resourceClaims[].resourceClaimName": COPIED,
    "resourceClaims[].resourceClaimTemplateName": COPIED,
    "volumes[].glusterfs.endpoints": REFUSED,
    "volumes[].projected.sources[].clusterTrustBundle.name": DROPPED,
    "volumes[].projected.sources[].clusterTrustBundle.signerName": DROPPED,
    "priorityClassName": POLICY,
    "runtimeClassName": POLICY,
    "serviceAccountName": POLICY,
    "securityContext.windowsOptions.gmsaCredentialSpecName": POLICY,
    "volumes[].projected.sources[].podCertificate.signerName": DROPPED,
    "resources.claims[].name": OWN,
    "volumes[].downwardAPI.items[].resourceFieldRef.containerName": OWN,
    "volumes[].name": OWN,
    "volumes[].projected.sources[].downwardAPI.items[].resourceFieldRef.containerName": OWN,
    "dnsConfig.options[].name": NO_OBJECT,
    "hostname": NO_OBJECT,
    "os.name": NO_OBJECT,
    "securityContext.sysctls[].name": NO_OBJECT,
    "securityContext.windowsOptions.runAsUserName": NO_OBJECT,
    "volumes[].azureDisk.diskName": NO_OBJECT,
    "volumes[].azureFile.shareName": NO_OBJECT,
    "volumes[].flocker.datasetName": NO_OBJECT,
    "volumes[].gcePersistentDisk.pdName": NO_OBJECT,
    "volumes[].iscsi.initiatorName": NO_OBJECT,
    "volumes[].scaleIO.volumeName": NO_OBJECT,
    "volumes[].storageos.volumeName": NO_OBJECT,
    "volumes[].storageos.volumeNamespace": NO_OBJECT,
    "volumes[].vsphereVolume.storagePolicyName": NO_OBJECT,
    **{
        f"{container}.{field}": OWN
        for container in _CONTAINERS
        for field in (
            "env[].name",
            "env[].valueFrom.fileKeyRef.volumeName",
            "env[].valueFrom.resourceFieldRef.containerName",
            "name",
            "ports[].name",
            "resizePolicy[].resourceName",
            "resources.claims[].name",
            "volumeDevices[].name",
            "volumeMounts[].name",
        )
    },
    **{
        f"{container}.{field}.httpGet.httpHeaders[].name": NO_OBJECT
        for container in _CONTAINERS
        for field in (
            "lifecycle.postStart",
            "lifecycle.preStop",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
        )
    },
    "ephemeralContainers[].targetContainerName": OWN,
    **{
        f"{container}.securityContext.windowsOptions.gmsaCredentialSpecName": POLICY
        for container in _CONTAINERS
    },
    **{f"{container}.securityContext.windowsOptions.runAsUserName": NO_OBJECT for container in _CONTAINERS},
}
_A_NAME = re.compile(r"(name|Name|Ref|endpoints|Names\[\]|Namespace|Class)$")
TARGET = "the-named-object"


def naming(path: str) -> dict[str, Any]:
    """Return a pod with the field of that path as ``TARGET``, and no other reference."""
    pod = upper_pod()
    pod["spec"] = {"containers": [{"name": "main", "image": "i"}], **placed(path, TARGET)}
    return pod


def test_every_name_in_a_pod_spec_has_a_treatment():
    """A field of a newer Kubernetes release fails here until it has one."""
    strings = {field.path for field in pod_fields() if field.kind == "string" and "{}" not in field.path}
    assert {path for path in strings if _A_NAME.search(path)} == TREATMENT.keys()


@pytest.mark.parametrize("path", [path for path, what in TREATMENT.items() if what == COPIED])
def test_a_referenced_object_is_a_dependency(path):
    """Its name is reserved in the lower cluster before the pod, or the container, is created."""
    assert [need.name for need in dependencies.dependencies(naming(path))] == [TARGET]


@pytest.mark.parametrize("path", [path for path, what in TREATMENT.items() if what == CLAIM])
def test_a_referenced_claim_is_known(path):
    """Its lower claim is created first."""
    assert claim_names(naming(path)) == [TARGET]


@pytest.mark.parametrize("path", [path for path, what in TREATMENT.items() if what == DROPPED])
def test_a_name_of_the_upper_cluster_is_not_copied(path):
    """It would mean another object in the lower cluster."""
    assert TARGET not in json.dumps(lower_pod.lower_pod(naming(path), OPTIONS))


@pytest.mark.parametrize("path", [path for path, what in TREATMENT.items() if what == REFUSED])
def test_an_unsupported_reference_refuses_the_pod(path):
    """Copied or dropped, it would change the pod."""
    assert spec_fields.not_mirrored(naming(path))


def test_an_ordinary_pod_has_no_unsupported_reference():
    """The API server's own token volume included."""
    assert spec_fields.not_mirrored(upper_pod()) == ""


@pytest.mark.parametrize(
    "path",
    [
        "volumes[].configMap.name",
        "volumes[].projected.sources[].configMap.name",
        "containers[].env[].valueFrom.configMapKeyRef.name",
        "containers[].envFrom[].configMapRef.name",
        "initContainers[].envFrom[].configMapRef.name",
    ],
)
def test_the_root_ca_is_always_the_upper_clusters(path):
    """Both clusters have a ConfigMap of that name in every namespace; the lower one is unmanaged."""
    pod = json.loads(json.dumps(naming(path)).replace(TARGET, service_account.ROOT_CA))
    lower = json.dumps(lower_pod.lower_pod(pod, OPTIONS)["spec"])
    assert service_account.root_ca_name(OPTIONS.owner.cluster_id) in lower
    assert f'"{service_account.ROOT_CA}"' not in lower


def test_a_debug_container_reads_the_upper_clusters_root_ca():
    """It is added later, by another request."""
    pod = naming("ephemeralContainers[].envFrom[].configMapRef.name")
    pod = json.loads(json.dumps(pod).replace(TARGET, service_account.ROOT_CA))
    (container,) = lower_pod.ephemeral_containers(pod, OPTIONS)
    reference = container["envFrom"][0]["configMapRef"]
    assert reference["name"] == service_account.root_ca_name(OPTIONS.owner.cluster_id)
