"""The flags of kube-scheduler, which tensile-kube's multi-scheduler has, too: accepted without effect.

The extender is not a scheduler: leader election, serving and the queue are settings of the stock kube-scheduler that calls it.
The lists contain the flags of Kubernetes 1.18 (of which tensile-kube's multi-scheduler is a build) to 1.36. klog's flags are
those of every program (``controller_runtime.process.flags``).
"""

from __future__ import annotations

from controller_runtime.process.flags import ForeignFlags

_VALUES = """
    algorithm-provider allow-metric-labels allow-metric-labels-manifest authentication-kubeconfig
    authentication-token-webhook-cache-ttl authorization-always-allow-paths authorization-kubeconfig
    authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl bind-address cert-dir
    client-ca-file disabled-metrics emulated-version feature-gates
    hard-pod-affinity-symmetric-weight http2-max-streams-per-connection kube-api-burst kube-api-content-type kube-api-qps
    leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock leader-elect-resource-name
    leader-elect-resource-namespace leader-elect-retry-period lock-object-name lock-object-namespace log-flush-frequency
    log-json-info-buffer-size log-text-info-buffer-size logging-format
    pod-max-in-unschedulable-pods-duration policy-config-file policy-configmap policy-configmap-namespace
    requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix
    requestheader-group-headers requestheader-uid-headers requestheader-username-headers scheduler-name secure-port
    show-hidden-metrics-for-version tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file
    tls-sni-cert-key write-config-to
"""
_SWITCHES = """
    authentication-skip-lookup authentication-tolerate-lookup-failure contention-profiling disable-http2-serving emulation-forward-compatible
    experimental-logging-sanitization leader-elect log-json-split-stream log-text-split-stream
    permit-address-sharing permit-port-sharing profiling use-legacy-policy-config
"""
KUBE_SCHEDULER = ForeignFlags(
    program="kube-scheduler",
    next="give it to the stock kube-scheduler, which calls this extender; "
    "'virtual-node-multi-scheduler print-scheduler-configuration' prints that scheduler's configuration",
    values=frozenset(_VALUES.split()),
    switches=frozenset(_SWITCHES.split()),
)
