"""files/dashboard.json: metrics of all components on one Grafana page."""

from __future__ import annotations

import json

from hack.chart import dashboard_plane, grafana
from hack.chart.grafana import OWN_SERIES, Panel, Query, Row, current, quantile, quantiles, rate
from hack.chart.rights import CHART

FILE = CHART / "files" / "dashboard.json"
_UP = ((None, "red"), (1, "green"))
_CLUSTERS = 'cluster=~"$cluster"'
_BOTH = 'cluster=~"$cluster|upper"'
_REQUESTS = f"{OWN_SERIES}, {_BOTH}"
_NODES = 'cluster=~"$cluster", node=~"$node"'
_CLUSTER_UP = current("virtual_node_cluster_up", "cluster", _CLUSTERS).expression
_NODE_READY = current("virtual_node_node_ready", "cluster, node", _NODES).expression
_MIRRORED = current("virtual_node_cached_objects", "cluster", f'{_CLUSTERS}, resource="mirrored-pods"')
_LAG = "virtual_node_mirror_seconds"
_LATENCY = "rest_client_request_duration_seconds"


def _one(title: str, expression: str, thresholds: grafana.Thresholds = grafana.GREEN) -> Panel:
    return Panel(title, Query(expression), kind="stat", width=4, thresholds=thresholds)


def _of_direction(direction: str) -> str:
    return f'{_CLUSTERS}, direction="{direction}"'


_OVERVIEW = [
    _one("Lower clusters up", f"sum({_CLUSTER_UP})", _UP),
    _one("Lower clusters down", f"count({_CLUSTER_UP} == 0) or vector(0)", grafana.ZERO_IS_GOOD),
    _one("Virtual nodes ready", f"sum({_NODE_READY})", _UP),
    _one("Mirrored pods", f"sum({_MIRRORED.expression})"),
    Panel(
        "Leaders",
        current("virtual_node_leader", "component", function="sum"),
        kind="stat",
        width=8,
        meaning="One for each component that runs with leader election; with mode Sharded one for each replica.",
        thresholds=_UP,
    ),
    Panel(
        "Lower clusters by replica",
        current("virtual_node_owned_cluster", "pod", function="sum"),
        meaning="With mode Sharded. The sum is the number of configured lower clusters.",
    ),
    Panel("Pods", _MIRRORED, meaning="Mirrored pods, by lower cluster."),
    Panel(
        "Lost and refused pods",
        rate("virtual_node_pods_lost_total", "cluster", _CLUSTERS, legend="lost {{cluster}}"),
        rate(
            "virtual_node_pods_refused_total", "cluster, reason", _CLUSTERS, legend="{{reason}} {{cluster}}"
        ),
        unit="ops",
    ),
    Panel(
        "Delayed pod statuses",
        rate("virtual_node_pod_statuses_delayed_total", "cluster", _CLUSTERS),
        unit="ops",
        meaning="A lower cluster changes the statuses of its pods too often, for example because it is hostile.",
    ),
]
_MIRROR_LAG = [
    *(
        Panel(
            f"Mirror lag {direction}",
            *quantiles(_LAG, "cluster", _of_direction(direction)),
            unit="s",
            meaning=meaning,
        )
        for direction, meaning in (
            ("down", "Time from reading an upper pod to creating its lower pod."),
            ("up", "Time from reading a lower change to writing the upper status."),
        )
    ),
    *(
        Panel(
            f"Mirror lag {direction}, all changes",
            rate(f"{_LAG}_bucket", "le", _of_direction(direction)),
            unit="s",
            kind="heatmap",
        )
        for direction in ("down", "up")
    ),
]
_QUEUES = [
    Panel("Keys that wait", current("workqueue_depth", "component, name", OWN_SERIES, legend="{{name}}")),
    Panel(
        "Longest work under way",
        current(
            "workqueue_longest_running_processor_seconds", "component, name", OWN_SERIES, legend="{{name}}"
        ),
        current("workqueue_unfinished_work_seconds", "component, name", OWN_SERIES, legend="all of {{name}}"),
        unit="s",
    ),
    Panel(
        "Queued and retried",
        rate("workqueue_adds_total", "name", OWN_SERIES),
        rate("workqueue_retries_total", "name", OWN_SERIES, legend="again {{name}}"),
        rate("virtual_node_stale_sync_skips_total", "name", OWN_SERIES, legend="stale cache {{name}}"),
        unit="ops",
    ),
    Panel(
        "Waiting and working, p99",
        quantile("0.99", "workqueue_queue_duration_seconds", "name", OWN_SERIES, legend="waits {{name}}"),
        quantile("0.99", "workqueue_work_duration_seconds", "name", OWN_SERIES, legend="works {{name}}"),
        unit="s",
    ),
    Panel(
        "Namespaces that wait after long work",
        rate("workqueue_paused_seconds_total", "component, name", OWN_SERIES, legend="{{name}}"),
    ),
    Panel(
        "Event loop stalls, p99",
        quantile("0.99", "virtual_node_event_loop_stall_seconds", "component", OWN_SERIES),
        unit="s",
        meaning="Delay of timers. More than 0.1 s for long: the process has too little CPU, or a function blocks the loop.",
    ),
]
_API = [
    Panel("Requests", rate("rest_client_requests_total", "cluster, verb", _REQUESTS), unit="reqps"),
    Panel(
        "Requests that fail",
        rate("rest_client_requests_total", "cluster, code", f'{_REQUESTS}, code!~"2..|3.."'),
        unit="reqps",
        meaning="Code <error>: no response.",
    ),
    Panel(
        "Responses over a limit",
        rate("rest_client_responses_rejected_total", "cluster, limit", _REQUESTS),
        unit="reqps",
        meaning="The API server sent more than a client accepts: a body, one watch event, or values of a body.",
    ),
    Panel("Latency, p50", quantile("0.5", _LATENCY, "cluster, verb", _REQUESTS), unit="s"),
    Panel("Latency, p99", quantile("0.99", _LATENCY, "cluster, verb", _REQUESTS), unit="s"),
    Panel(
        "Events",
        rate("virtual_node_events_total", "cluster, outcome", _BOTH),
        rate(
            "virtual_node_events_dropped_total",
            "cluster, cause",
            _BOTH,
            legend="{{cluster}} dropped: {{cause}}",
        ),
        unit="ops",
    ),
]
_WATCHES = [
    Panel(
        "Watches begun again",
        rate("virtual_node_watch_restarts_total", "cluster, resource, reason", _BOTH),
        unit="ops",
    ),
    Panel("Objects in caches", current("virtual_node_cached_objects", "cluster, resource", _BOTH)),
    Panel(
        "Memory of caches",
        current("virtual_node_cache_bytes", "cluster", _CLUSTERS),
        unit="bytes",
        meaning="A lower cluster that reaches its cacheBytes (128 MiB) stops. Raise the limit before.",
    ),
    Panel(
        "Errors in event handlers",
        rate("virtual_node_handler_errors_total", "cluster, resource", _BOTH),
        unit="ops",
        meaning="Always worth a report.",
    ),
]
_STREAMS = [
    Panel(
        "Streams open",
        current("virtual_node_kubelet_streams", "verb", function="sum"),
        rate("virtual_node_kubelet_streams_refused_total", "limit", legend="refused per second: {{limit}}"),
    ),
    Panel(
        "Bytes of streams that ended",
        rate("virtual_node_kubelet_stream_bytes_total", "verb, to", legend="{{verb}} to {{to}}"),
        unit="Bps",
    ),
    Panel(
        "Requests to the kubelet API",
        rate("virtual_node_kubelet_http_requests_total", "path, code"),
        unit="reqps",
    ),
]
_CAPACITY = [
    *(
        Panel(
            title,
            current(
                "virtual_node_node_allocatable",
                "cluster, node",
                f'{_NODES}, resource="{resource}"',
                legend="{{node}}",
            ),
            unit=unit,
        )
        for title, resource, unit in (
            ("CPU offered", "cpu", "short"),
            ("Memory offered", "memory", "bytes"),
            ("Pods offered", "pods", "short"),
        )
    ),
    Panel(
        "Lower nodes",
        current("virtual_node_lower_nodes", "node, state", _NODES),
        meaning="Selected, and of those counting: Ready and not cordoned.",
    ),
]
_ROWS = [
    Row("Overview", _OVERVIEW),
    Row("Mirror lag", _MIRROR_LAG),
    Row("Queues", _QUEUES),
    Row("API calls", _API),
    Row("Watches", _WATCHES),
    Row("Streams", _STREAMS, width=8),
    Row("Capacity", _CAPACITY, width=6),
    *dashboard_plane.ROWS,
]


def render() -> str:
    """Return the dashboard as JSON text."""
    made = grafana.dashboard(
        "virtual-node",
        "virtual-node",
        [
            grafana.variable("cluster", "Lower cluster", "label_values(virtual_node_cluster_up, cluster)"),
            grafana.variable(
                "node", "Virtual node", 'label_values(virtual_node_node_ready{cluster=~"$cluster"}, node)'
            ),
        ],
        _ROWS,
    )
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
