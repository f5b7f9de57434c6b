"""The dashboard's rows about webhook, scheduling, Swarms and certificates, and about the metrics of every process."""

from __future__ import annotations

from hack.chart.grafana import (
    OWN_SERIES,
    RATE,
    ZERO_IS_GOOD,
    Panel,
    Query,
    Row,
    current,
    quantile,
    quantiles,
    rate,
)

_OWN_LEGEND = "{{component}} {{pod}}"
_SWARM_LABELS = "swarm_namespace, swarm"
_SWARM_LEGEND = "{{swarm_namespace}}/{{swarm}}"

_WEBHOOK = [
    Panel("Webhook: reviews", rate("virtual_node_webhook_reviews_total", "kind, outcome"), unit="reqps"),
    Panel("Webhook: time of a review", *quantiles("virtual_node_webhook_review_seconds", "kind"), unit="s"),
]
_EXTENDER = [
    Panel("Extender: calls", rate("virtual_node_extender_calls_total", "verb, outcome"), unit="reqps"),
    Panel(
        "Extender: active replica",
        current("virtual_node_extender_active", "pod"),
        meaning="1 in the replica that answers. All are 0 while the scheduler sends no calls.",
    ),
    Panel("Extender: time of a call", *quantiles("virtual_node_extender_call_seconds", "verb"), unit="s"),
    Panel(
        "Extender: unknown rules of lower clusters",
        current("virtual_node_extender_unknown_rules", "cluster, resource"),
        meaning="Rules that the lower cluster does not let us read; pods that they refuse are bound there nevertheless.",
    ),
    Panel(
        "Extender: reserved room",
        current("virtual_node_reservations", "cluster, state"),
        rate(
            "virtual_node_reservations_without_room_total",
            "cluster",
            legend="lost {{cluster}}",
        ),
        meaning="Waiting: bound pods for which no lower node has room. Lost: pods per second that lose their reserved room.",
    ),
    Panel(
        "Extender: unknown virtual nodes",
        current("virtual_node_extender_unknown_nodes", "component"),
        meaning="Virtual nodes of lower clusters that are not in its configuration; they get no pods, unless unknownNodes is Pass.",
    ),
    Panel(
        "Extender: new lower nodes that pods wait for",
        current("virtual_node_expected_nodes", "cluster, shape"),
        rate(
            "virtual_node_expected_nodes_failed_total",
            "cluster, shape",
            legend="failed {{cluster}} {{shape}}",
        ),
        meaning="Failed: nodes that the lower cluster did not add within autoscaling.provisionSeconds.",
    ),
    Panel(
        "Extender: malformed data of lower clusters",
        rate("virtual_node_malformed_clusters_total", "cluster"),
        meaning="Failed calculations; the log contains an error.",
    ),
    Panel(
        "Extender: pod groups",
        current("virtual_node_pod_groups", "state"),
        meaning="Groups with all their pods that wait for room, or that have reserved room.",
    ),
    Panel(
        "Extender: time until a pod group starts",
        quantile("0.5", "virtual_node_pod_group_start_seconds", "pod", legend="p50 {{pod}}"),
        unit="s",
    ),
    Panel(
        "Extender: lower nodes with unknown usage",
        current("virtual_node_usage_source_failed", "cluster", legend="{{cluster}} source failed"),
        rate("virtual_node_usage_neutral_total", "cluster, reason"),
        rate(
            "virtual_node_annotator_writes_total",
            "cluster, result",
            legend="{{cluster}} annotations {{result}}",
        ),
        meaning="Scores without measured usage are neutral; no pod waits for it.",
    ),
]
_DESCHEDULER = [
    Panel(
        "Moved",
        rate("virtual_node_descheduler_moved_total", "strategy, how"),
        rate("virtual_node_descheduler_recreated_total", "node", legend="recreated {{node}}"),
        unit="ops",
    ),
    Panel(
        "Not moved",
        rate("virtual_node_descheduler_not_moved_total", "cause"),
        rate("virtual_node_descheduler_rolled_back_total", "strategy", legend="rolled back {{strategy}}"),
        unit="ops",
    ),
    Panel(
        "Pods waiting to be moved",
        current("virtual_node_descheduler_waiting_pods", "strategy, cause", function="sum"),
        Query("sum(virtual_node_descheduler_replacing_pods)", "being replaced"),
        meaning="Pods that a strategy selected and that are not moved, by reason.",
    ),
]
_SWARM = [
    Panel(
        "Jobs of Swarms",
        current("virtual_node_swarm_jobs", f"{_SWARM_LABELS}, state", legend=_SWARM_LEGEND + " {{state}}"),
        meaning="Assigned and not running: a hand-over, or a worker that does not acknowledge.",
    ),
    Panel(
        "Workers of Swarms",
        current("virtual_node_swarm_workers", f"{_SWARM_LABELS}, state", legend=_SWARM_LEGEND + " {{state}}"),
    ),
    Panel(
        "Jobs moved", rate("virtual_node_swarm_moved_total", _SWARM_LABELS, legend=_SWARM_LEGEND), unit="ops"
    ),
]
_CERTIFICATES = [
    Panel(
        "Serving certificates end in",
        Query(
            "min by (component, name) (virtual_node_certificate_expiration_timestamp_seconds) - time()",
            "{{component}} {{name}}",
        ),
        unit="s",
    ),
    Panel(
        "Certificates that could not be read again",
        rate("virtual_node_certificate_reload_errors_total", "component, name"),
        unit="ops",
    ),
    Panel(
        "Tokens of lower clusters expire in",
        *(
            Query(
                f"min by (cluster, secret) (virtual_node_token_{what}_timestamp_seconds) - time()",
                f"{what} {{{{cluster}}}} {{{{secret}}}}",
            )
            for what in ("expiration", "renewal")
        ),
        unit="s",
        meaning="Renewal is due at 0; below, it fails.",
    ),
    Panel(
        "Failed renewals of tokens",
        rate("virtual_node_token_renewal_errors_total", "cluster, secret"),
        unit="ops",
    ),
]
_CONNECTIONS = [
    Panel("Connections open", current("virtual_node_server_connections", "component, pod, server")),
    Panel(
        "Connections that a limit closed",
        rate(
            "virtual_node_server_connections_closed_total",
            "component, server, limit",
            legend="{{server}} {{limit}}",
        ),
        unit="ops",
        meaning="Rising: an attack, or clients that leak connections. The log names an address.",
    ),
]
_PROCESSES = [
    Panel(
        "Health",
        current("virtual_node_health", "verdict"),
        current("virtual_node_faults", "kind", legend="faults: {{kind}}"),
        current("virtual_node_remarks", "kind", legend="remarks: {{kind}}"),
        current(
            "virtual_node_inspection_findings",
            "severity, state",
            legend="inspection: {{severity}}, {{state}}",
        ),
        meaning="The verdict that is 1 holds; then the number of objects with each kind of fault, and of findings of the "
        "last scheduled inspection.",
    ),
    Panel(
        "Versions",
        Query("max by (component, pod, version, python) (virtual_node_build_info)"),
        kind="table",
        meaning="All replicas, including standby ones; after an upgrade all versions are equal.",
    ),
    Panel(
        "Configuration rejected",
        current("virtual_node_config_rejected", "pod"),
        kind="stat",
        meaning="1: the replica refuses the content of its configuration file and uses the previous one.",
        thresholds=ZERO_IS_GOOD,
    ),
    Panel(
        "ClusterProfiles",
        current("virtual_node_cluster_profiles", "component, state"),
        kind="stat",
        meaning="ClusterProfiles that are used as lower clusters, and refused ones. An event of each refused one has the reason.",
    ),
    Panel("CPU", Query(f"rate(process_cpu_seconds_total{{{OWN_SERIES}}}{RATE})", _OWN_LEGEND)),
    Panel("Memory", Query(f"process_resident_memory_bytes{{{OWN_SERIES}}}", _OWN_LEGEND), unit="bytes"),
]
ROWS = [
    Row("Webhook", _WEBHOOK),
    Row("Extender", _EXTENDER, width=8),
    Row("Descheduler", _DESCHEDULER, width=8),
    Row("Swarm", _SWARM, width=8),
    Row("Certificates", _CERTIFICATES),
    Row("Connections", _CONNECTIONS),
    Row("Processes", _PROCESSES, width=8),
]
