"""The environment variables of the virtual node: those of configuration fields, and others."""

from __future__ import annotations

import msgspec

from clusterset.config import Cluster
from controller_runtime.process.settings import attribute_docstrings, settings
from hack.docs import markdown
from virtual_node.config.command_line import DaemonSettings
from virtual_node.config.types import Config, KubeletConfig, LeaderElectionConfig

_PATHS: dict[type[msgspec.Struct], str] = {
    Config: "",
    Cluster: "clusters[].",
    KubeletConfig: "kubelet.",
    LeaderElectionConfig: "leaderElection.",
}


def variables() -> dict[str, str]:
    """Return every environment variable that the virtual node reads, and its meaning."""
    found = {
        "KUBECONFIG": "the upper cluster's kubeconfig, or several with `:` between them; `--kubeconfig` beats it"
    }
    told = attribute_docstrings(DaemonSettings)
    for field, setting in settings(DaemonSettings):
        for name in setting.environment:
            overridden = f" `{setting.flag}` overrides it." if setting.flag else ""
            default = f" Default: {markdown.code(str(field.default))}." if field.default else ""
            found[name] = f"{markdown.prose(told[field.name])}{default}{overridden}"
    for kind, prefix in _PATHS.items():
        for field, setting in settings(kind):
            overridden = f"; `{setting.flag}` overrides it" if setting.flag else ""
            for name in setting.environment:
                found[name] = f"sets {markdown.code(prefix + field.encode_name)}{overridden}"
    return dict(sorted(found.items()))
