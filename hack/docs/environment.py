"""The environment variables of the virtual node: those of configuration fields, and others."""

from __future__ import annotations

import msgspec

import virtual_node.config.command_line
from clusterset.config import Cluster
from controller_runtime.process.setting import settings
from hack.docs import markdown
from hack.docs.sources import environment_variables
from virtual_node.config.kubelet_types import KubeletConfig
from virtual_node.config.types import Config, LeaderElectionConfig

_PATHS: dict[type[msgspec.Struct], str] = {
    Config: "",
    Cluster: "clusters[].",
    KubeletConfig: "kubelet.",
    LeaderElectionConfig: "leaderElection.",
}
_MEANING = {
    "KUBECONFIG": "the upper cluster's kubeconfig, or several with `:` between them; `--kubeconfig` beats it",
    "VKUBELET_NODE_LABEL": "`key:value`: one more label of the Node; ignored with a warning when it has not exactly one colon. Not with `--config`",
    "VKUBELET_TAINT_EFFECT": "effect of the Node's taint (`NoSchedule`). Not with `--config`",
    "VKUBELET_TAINT_KEY": "key of the Node's taint (`virtual-kubelet.io/provider`). Not with `--config`",
    "VKUBELET_TAINT_VALUE": "its value (what `--provider` says). Not with `--config`",
}


def variables() -> dict[str, str]:
    """Return every environment variable that the virtual node reads, and its meaning.

    Raises:
        LookupError: a variable without a configuration field is missing in ``_MEANING``.
    """
    found = dict(_MEANING)
    for kind, prefix in _PATHS.items():
        for field, setting in settings(kind):
            overridden = f"; `{setting.flag}` overrides it" if setting.flag else ""
            for name in setting.environment:
                found[name] = f"sets {markdown.code(prefix + field.encode_name)}{overridden}"
    unknown = set(environment_variables(virtual_node.config.command_line)) - found.keys()
    if unknown:
        raise LookupError(f"say in hack/docs/environment.py what {', '.join(unknown)} means")
    return dict(sorted(found.items()))
