"""Rules about releases of virtual nodes, other components and this command."""

from __future__ import annotations

from clusterset.model import names
from virtual_node.certificates.expiry import UPPER
from virtual_node.commands.inspect.facts import COMPONENT_POD, Findings, InspectFacts, Subject
from virtual_node.health.objects import is_deleting, is_virtual, labels_of

_LABEL_COMPONENT = "app.kubernetes.io/component"
_LABEL_RELEASE = "app.kubernetes.io/version"
_SAME = "upgrade the older one: all components must have the same version"


def of_nodes(facts: InspectFacts) -> Findings:
    """Yield virtual nodes of another release than this command, because their translation may look like drift."""
    for node in facts.upper.of("Node"):
        labels = labels_of(node)
        if not is_virtual(node) or not facts.release:
            continue
        node_version = labels.get(names.LABEL_VERSION, "")
        name = node["metadata"]["name"]
        # Unconfigured virtual nodes without our version label are of other software, such as virtual-kubelet.
        if node_version != facts.release and (node_version or name in facts.virtual_nodes()):
            yield Subject("release", UPPER, "Node", name).warning(
                f"runs {f'version {node_version}' if node_version else 'an unknown version'}; "
                f"this command has version {facts.release}, and may report differences between the two "
                f"versions as drift",
                _SAME,
                transient=True,
            )


def of_components(facts: InspectFacts) -> Findings:
    """Yield namespaces whose components, by the chart's labels, run different releases."""
    found: dict[str, dict[str, set[str]]] = {}
    for pod in facts.upper.of(COMPONENT_POD):
        labels = labels_of(pod)
        if not is_deleting(pod) and (release := labels.get(_LABEL_RELEASE)):
            component = labels.get(_LABEL_COMPONENT) or pod["metadata"]["name"]
            releases = found.setdefault(pod["metadata"]["namespace"], {})
            releases.setdefault(release, set()).add(component)
    for namespace, releases in sorted(found.items()):
        if len(releases) > 1:
            versions = "; ".join(
                f"{release}: {', '.join(sorted(them))}" for release, them in sorted(releases.items())
            )
            yield Subject("release", UPPER, "Namespace", namespace).warning(
                f"its components run different versions: {versions}",
                f"kubectl -n {namespace} get deployments: is a rollout stuck? Otherwise {_SAME}",
                transient=True,
            )
