"""The chart's RBAC, from the components' tables of rights: exactly the required rules are granted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from controller_runtime.rights import Right, rules
from descheduler import program as descheduler
from multi_scheduler import program as multi_scheduler
from multi_scheduler.annotator import program as annotator
from swarm import program as swarm
from virtual_node.rights import daemon as virtual_node
from virtual_node.rights import operator
from webhook import program as webhook

CHART = Path(__file__).resolve().parents[2] / "charts" / "virtual-node"
FILE = CHART / "files" / "rights.yaml"
_HEADER = "# Made by `python -m hack.chart` from the components' tables of rights. Do not edit.\n"


def tables() -> dict[str, dict[str, Iterable[Right]]]:
    """Return component → name of a set of rights → its rights."""
    return {
        "virtualNode": {
            "upper": virtual_node.UPPER,
            "election": virtual_node.UPPER_ELECTION,
            "shards": virtual_node.UPPER_SHARDS,
            "page": virtual_node.UPPER_PAGE,
            "sharedTokens": virtual_node.UPPER_SHARED_TOKENS,
            **{f"follow-{kind}": rights for kind, rights in virtual_node.UPPER_COPIES.items()},
            **{f"inspect-{kind}": rights for kind, rights in virtual_node.INSPECTION_COPIES.items()},
            "resourceClaims": virtual_node.UPPER_RESOURCE_CLAIMS,
            "renewal": virtual_node.UPPER_RENEWAL,
            "profiles": virtual_node.UPPER_PROFILES,
            "profilesAny": virtual_node.UPPER_PROFILES_ANY,
            "csr": virtual_node.UPPER_CSR,
            "csrApproval": virtual_node.UPPER_CSR_APPROVAL,
            "doctor": operator.DOCTOR,
            "inspection": operator.INSPECTION,
            "uninstall": operator.UNINSTALL,
            "uninstallShards": operator.UNINSTALL_SHARDS,
            "uninstallProfilesAny": operator.UNINSTALL_PROFILES_ANY,
        },
        "webhook": {"upper": webhook.UPPER},
        "descheduler": {"upper": descheduler.UPPER},
        "swarm": {"upper": swarm.UPPER, "swarms": swarm.SWARMS},
        "multiScheduler": {
            "upper": multi_scheduler.UPPER,
            "bind": multi_scheduler.BIND,
            "profiles": multi_scheduler.PROFILES,
            "upperMetricsAPI": multi_scheduler.UPPER_METRICS_API,
            "upperKubelets": multi_scheduler.UPPER_KUBELETS,
        },
        "annotator": {"upper": annotator.UPPER, "profiles": multi_scheduler.PROFILES},
    }


def render() -> str:
    """Render ``files/rights.yaml``: component → set → namespace (or ``<cluster>``) → rules."""
    whole = {
        component: {name: _by_namespace(rights) for name, rights in sets.items()}
        for component, sets in tables().items()
    }
    return _HEADER + yaml.safe_dump(whole, sort_keys=True, width=110)


def _by_namespace(rights: Iterable[Right]) -> dict[str, object]:
    found: dict[str, list[Right]] = {}
    for right in rights:
        found.setdefault(right.namespace, []).append(right)
    return {namespace or "<cluster>": rules(group) for namespace, group in found.items()}
