"""The dashboard's rows about webhook, scheduling, Swarms and certificates, and about the metrics of every process."""

from __future__ import annotations

from collections.abc import Sequence

from hack.chart.grafana import Panel
from hack.chart.promql import OWN_SERIES, RATE, quantile, rate

_WEBHOOK = [
    Panel(
        "Webhook: reviews",
        {rate("virtual_node_webhook_reviews_total", "kind, outcome"): "{{kind}} {{outcome}}"},
        unit="reqps",
    ),
    Panel(
        "Webhook: time of a review",
        {
            quantile("0.5", "virtual_node_webhook_review_seconds", "kind"): "p50 {{kind}}",
            quantile("0.99", "virtual_node_webhook_review_seconds", "kind"): "p99 {{kind}}",
        },
        unit="s",
    ),
]
_EXTENDER = [
    Panel(
        "Extender: calls",
        {rate("virtual_node_extender_calls_total", "verb, outcome"): "{{verb}} {{outcome}}"},
        unit="reqps",
        width=8,
    ),
    Panel(
        "Extender: time of a call",
        {
            quantile("0.5", "virtual_node_extender_call_seconds", "verb"): "p50 {{verb}}",
            quantile("0.99", "virtual_node_extender_call_seconds", "verb"): "p99 {{verb}}",
        },
        unit="s",
        width=8,
    ),
    Panel(
        "Extender: unknown rules of lower clusters",
        {
            "max by (cluster, resource) (virtual_node_extender_unknown_rules)": "{{cluster}} {{resource}}",
        },
        width=8,
        meaning="Rules that the lower cluster does not let us read; pods that they refuse are bound there nevertheless.",
    ),
    Panel(
        "Extender: new lower nodes that pods wait for",
        {
            "max by (cluster, shape) (virtual_node_expected_nodes)": "{{cluster}} {{shape}}",
            rate(
                "virtual_node_expected_nodes_failed_total", "cluster, shape"
            ): "failed {{cluster}} {{shape}}",
        },
        width=8,
        meaning="Failed: nodes that the lower cluster did not add within autoscaling.provisionSeconds.",
    ),
    Panel(
        "Extender: malformed data of lower clusters",
        {rate("virtual_node_malformed_clusters_total", "cluster"): "{{cluster}}"},
        width=8,
        meaning="Failed calculations; the log contains an error.",
    ),
    Panel(
        "Extender: pod groups",
        {"max by (state) (virtual_node_pod_groups)": "{{state}}"},
        width=8,
        meaning="Groups with all their pods that wait for room, or that have reserved room.",
    ),
    Panel(
        "Extender: time until a pod group starts",
        {quantile("0.5", "virtual_node_pod_group_start_seconds", "pod"): "p50 {{pod}}"},
        unit="s",
        width=8,
    ),
    Panel(
        "Extender: lower nodes with unknown usage",
        {
            "max by (cluster) (virtual_node_usage_source_failed)": "{{cluster}} source failed",
            rate("virtual_node_usage_neutral_total", "cluster, reason"): "{{cluster}} {{reason}}",
            rate(
                "virtual_node_annotator_writes_total", "cluster, result"
            ): "{{cluster}} annotations {{result}}",
        },
        width=8,
        meaning="Scores without measured usage are neutral; no pod waits for it.",
    ),
]
_DESCHEDULER = [
    Panel(
        "Moved",
        {
            rate("virtual_node_descheduler_moved_total", "strategy, how"): "{{strategy}} {{how}}",
            rate("virtual_node_descheduler_recreated_total", "node"): "recreated {{node}}",
        },
        unit="ops",
        width=8,
    ),
    Panel(
        "Not moved",
        {
            rate("virtual_node_descheduler_not_moved_total", "cause"): "{{cause}}",
            rate("virtual_node_descheduler_rolled_back_total", "strategy"): "rolled back {{strategy}}",
        },
        unit="ops",
        width=8,
    ),
    Panel(
        "Pods waiting to be moved",
        {
            "sum by (strategy, cause) (virtual_node_descheduler_waiting_pods)": "{{strategy}} {{cause}}",
            "sum(virtual_node_descheduler_replacing_pods)": "being replaced",
        },
        width=8,
        meaning="Pods that a strategy selected and that are not moved, by reason.",
    ),
]
_SWARM = [
    Panel(
        "Jobs of Swarms",
        {
            "max by (swarm_namespace, swarm, state) (virtual_node_swarm_jobs)": (
                "{{swarm_namespace}}/{{swarm}} {{state}}"
            )
        },
        width=8,
        meaning="Assigned and not running: a hand-over, or a worker that does not acknowledge.",
    ),
    Panel(
        "Workers of Swarms",
        {
            "max by (swarm_namespace, swarm, state) (virtual_node_swarm_workers)": (
                "{{swarm_namespace}}/{{swarm}} {{state}}"
            )
        },
        width=8,
    ),
    Panel(
        "Jobs moved",
        {rate("virtual_node_swarm_moved_total", "swarm_namespace, swarm"): "{{swarm_namespace}}/{{swarm}}"},
        unit="ops",
        width=8,
    ),
]
_CERTIFICATES = [
    Panel(
        "Serving certificates end in",
        {
            "min by (component, name) (virtual_node_certificate_expiration_timestamp_seconds) - time()": (
                "{{component}} {{name}}"
            )
        },
        unit="s",
    ),
    Panel(
        "Certificates that could not be read again",
        {rate("virtual_node_certificate_reload_errors_total", "component, name"): "{{component}} {{name}}"},
        unit="ops",
    ),
    Panel(
        "Tokens of lower clusters expire in",
        {
            f"min by (cluster, secret) (virtual_node_token_{what}_timestamp_seconds) - time()": (
                f"{what} {{{{cluster}}}} {{{{secret}}}}"
            )
            for what in ("expiration", "renewal")
        },
        unit="s",
        meaning="Renewal is due at 0; below, it fails.",
    ),
    Panel(
        "Failed renewals of tokens",
        {rate("virtual_node_token_renewal_errors_total", "cluster, secret"): "{{cluster}} {{secret}}"},
        unit="ops",
    ),
]
_CONNECTIONS = [
    Panel(
        "Connections open",
        {
            "max by (component, pod, server) (virtual_node_server_connections)": "{{component}} {{pod}} {{server}}"
        },
    ),
    Panel(
        "Connections that a limit closed",
        {
            rate(
                "virtual_node_server_connections_closed_total", "component, server, limit"
            ): "{{server}} {{limit}}"
        },
        unit="ops",
        meaning="Rising: an attack, or clients that leak connections. The log names an address.",
    ),
]
_PROCESSES = [
    Panel(
        "Health",
        {
            "max by (verdict) (virtual_node_health)": "{{verdict}}",
            "max by (kind) (virtual_node_faults)": "faults: {{kind}}",
            "max by (severity, state) (virtual_node_inspection_findings)": "inspection: {{severity}}, {{state}}",
        },
        width=8,
        meaning="The verdict that is 1 holds; then the number of objects with each kind of fault, and of findings of the "
        "last scheduled inspection.",
    ),
    Panel(
        "Versions",
        {"max by (component, pod, version, python) (virtual_node_build_info)": ""},
        kind="table",
        width=8,
        meaning="All replicas, including standby ones; after an upgrade all versions are equal.",
    ),
    Panel(
        "Configuration rejected",
        {"max by (pod) (virtual_node_config_rejected)": "{{pod}}"},
        kind="stat",
        width=8,
        meaning="1: the replica refuses the content of its configuration file and uses the previous one.",
        thresholds=((None, "green"), (1, "red")),
    ),
    Panel(
        "ClusterProfiles",
        {"max by (component, state) (virtual_node_cluster_profiles)": "{{component}} {{state}}"},
        kind="stat",
        width=8,
        meaning="ClusterProfiles that are used as lower clusters, and refused ones. An event of each refused one has the reason.",
    ),
    Panel(
        "CPU", {f"rate(process_cpu_seconds_total{{{OWN_SERIES}}}{RATE})": "{{component}} {{pod}}"}, width=8
    ),
    Panel(
        "Memory",
        {f"process_resident_memory_bytes{{{OWN_SERIES}}}": "{{component}} {{pod}}"},
        unit="bytes",
        width=8,
    ),
]
ROWS: list[tuple[str, Sequence[Panel]]] = [
    ("Webhook", _WEBHOOK),
    ("Extender", _EXTENDER),
    ("Descheduler", _DESCHEDULER),
    ("Swarm", _SWARM),
    ("Certificates", _CERTIFICATES),
    ("Connections", _CONNECTIONS),
    ("Processes", _PROCESSES),
]
