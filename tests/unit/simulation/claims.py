"""What the control planes do with PersistentVolumeClaims: schedulers, provisioners, the controllers of volumes.

Every class binds when its first consumer is scheduled (WaitForFirstConsumer).
"""

from __future__ import annotations

from clusterset.model import names
from clusterset.model.pod.conditions import claim_names
from tests.fakes.apiserver.rules import PROTECTED
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.bodies import is_ending, key_of, uid_of

_CLAIMS, _VOLUMES = "persistentvolumeclaims", "persistentvolumes"


def are_bound(server: Server, pod: Body, node: str) -> bool:
    """Whether an unscheduled upper pod's claims are bound; asks for a volume on that node where they are not."""
    are_all = True
    for key in _of(pod):
        claim = server.find(_CLAIMS, key)
        if claim is None or is_ending(claim):
            return False
        if claim["status"]["phase"] != "Bound":
            are_all = False
            if names.ANNOTATION_SELECTED_NODE not in (claim["metadata"].get("annotations") or {}):
                patch = {"metadata": {"annotations": {names.ANNOTATION_SELECTED_NODE: node}}}
                server.patch(_CLAIMS, key, patch, who="scheduler")
    return are_all


def are_provisioned(server: Server, pod: Body) -> bool:
    """Whether a lower pod's claims are bound; provisions volumes where they are not."""
    return all([_has_volume(server, key, pod) for key in _of(pod)])  # noqa: C419 - each is asked for


def bind_above(server: Server) -> None:
    """Bind claims to the volumes that name them, and end what is deleted."""
    for volume in server.all(_VOLUMES):
        claim = server.find(_CLAIMS, _claim_of(volume))
        if claim is None or claim["spec"].get("volumeName"):
            continue
        if uid_of(claim) == volume["spec"]["claimRef"].get("uid"):
            _bind(server, claim, volume)
    _end(server)


def provide_below(server: Server) -> None:
    """Let volumes grow with their claims, and end what is deleted, volumes with their claims."""
    for claim in server.all(_CLAIMS):
        asked = claim["spec"]["resources"]["requests"]
        if claim["status"]["phase"] == "Bound" and claim["status"]["capacity"] != asked:
            spec = {"spec": {"capacity": asked}}
            server.patch(_VOLUMES, claim["spec"]["volumeName"], spec, who="resizer")
            status = {"status": {"capacity": asked}}
            server.patch(_CLAIMS, key_of(claim), status, who="resizer", subresource="status")
    _end(server)
    for volume in server.all(_VOLUMES):
        if server.find(_CLAIMS, _claim_of(volume)) is None:
            server.delete(_VOLUMES, key_of(volume), who="provisioner")
            server.patch(_VOLUMES, key_of(volume), {"metadata": {"finalizers": None}}, who="provisioner")


def _has_volume(server: Server, key: str, pod: Body) -> bool:
    claim = server.find(_CLAIMS, key)
    if claim is None or is_ending(claim):
        return False
    if claim["status"]["phase"] == "Bound":
        return True
    if not pod["spec"].get("nodeName"):
        volume = {
            "metadata": {"name": f"pvc-{uid_of(claim)[:8]}"},
            "spec": {
                "capacity": claim["spec"]["resources"]["requests"],
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": claim["spec"].get("storageClassName", "standard"),
                "claimRef": {field: claim["metadata"][field] for field in ("namespace", "name", "uid")},
            },
        }
        _bind(server, claim, server.create(_VOLUMES, volume, who="provisioner"))
    return False


def _bind(server: Server, claim: Body, volume: Body) -> None:
    key, name = key_of(claim), volume["metadata"]["name"]
    server.patch(_CLAIMS, key, {"spec": {"volumeName": name}}, who="volume controller")
    status = {"status": {"phase": "Bound", "capacity": volume["spec"]["capacity"]}}
    server.patch(_CLAIMS, key, status, who="volume controller", subresource="status")
    phase = {"status": {"phase": "Bound"}}
    server.patch(_VOLUMES, name, phase, who="volume controller", subresource="status")


def _end(server: Server) -> None:
    """Take the protection off what is being deleted and not used any more."""
    used = {key for pod in server.all("pods") for key in _of(pod)}
    claims = {key_of(claim) for claim in server.all(_CLAIMS)}
    for claim in server.all(_CLAIMS):
        if is_ending(claim) and key_of(claim) not in used:
            _unprotect(server, _CLAIMS, claim)
    for volume in server.all(_VOLUMES):
        if is_ending(volume) and _claim_of(volume) not in claims:
            _unprotect(server, _VOLUMES, volume)


def _unprotect(server: Server, plural: str, body: Body) -> None:
    left = [one for one in body["metadata"].get("finalizers") or () if one != PROTECTED[plural]]
    if left != body["metadata"].get("finalizers"):
        server.patch(plural, key_of(body), {"metadata": {"finalizers": left}}, who="protection")


def _claim_of(volume: Body) -> str:
    reference = volume["spec"].get("claimRef") or {}
    return f"{reference.get('namespace')}/{reference.get('name')}"


def _of(pod: Body) -> list[str]:
    return [f"{pod['metadata']['namespace']}/{name}" for name in claim_names(pod)]
