"""Descriptions of the virtual node's environment variables, which no parser of flags contains."""

from __future__ import annotations

MEANING = {
    "APISERVER_CA_CERT_LOCATION": "file: CA of the client certificates that the kubelet API accepts; `--client-verify-ca` beats it",
    "APISERVER_CERT_LOCATION": "file: the kubelet API's serving certificate; goes with `APISERVER_KEY_LOCATION`; without both it is self-signed",
    "APISERVER_KEY_LOCATION": "file: its private key",
    "DEFAULTNODE_NAME": "name of the virtual node, in node-cli's spelling",
    "DEFAULT_NODE_NAME": "name of the virtual node; beats `DEFAULTNODE_NAME`, `--nodename` beats both",
    "KUBECONFIG": "the upper cluster's kubeconfig, or several with `:` between them; `--kubeconfig` beats it",
    "KUBELET_PORT": "first port tried for the kubelet API (10250)",
    "MASTER_URI": "overrides the upper apiserver's URL of the kubeconfig",
    "VKUBELET_EXTERNAL_POD_IP": "ExternalIP published on the Node",
    "VKUBELET_NODE_LABEL": "`key:value`: one more label of the Node; ignored with a warning when it has not exactly one colon. Not with `--config`",
    "VKUBELET_POD_IP": "InternalIP published on the Node; without it the address that routes to the upper apiserver",
    "VKUBELET_TAINT_EFFECT": "effect of the Node's taint (`NoSchedule`). Not with `--config`",
    "VKUBELET_TAINT_KEY": "key of the Node's taint (`virtual-kubelet.io/provider`). Not with `--config`",
    "VKUBELET_TAINT_VALUE": "its value (what `--provider` says). Not with `--config`",
}
