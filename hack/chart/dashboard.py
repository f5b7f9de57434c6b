"""files/dashboard.json: metrics of all components on one Grafana page."""

from __future__ import annotations

import json

from hack.chart import dashboard_plane, grafana
from hack.chart.grafana import Panel
from hack.chart.promql import OWN_SERIES, quantile, rate
from hack.chart.rights import CHART

FILE = CHART / "files" / "dashboard.json"
_UP = ((None, "red"), (1, "green"))
_CLUSTERS = 'cluster=~"$cluster"'
_BOTH = 'cluster=~"$cluster|upper"'
_REQUESTS = f"{OWN_SERIES}, {_BOTH}"
_NODES = 'cluster=~"$cluster", node=~"$node"'


_OVERVIEW = [
    Panel(
        "Lower clusters up",
        {f"sum(max by (cluster) (virtual_node_cluster_up{{{_CLUSTERS}}}))": ""},
        kind="stat",
        width=4,
        thresholds=_UP,
    ),
    Panel(
        "Lower clusters down",
        {f"count(max by (cluster) (virtual_node_cluster_up{{{_CLUSTERS}}}) == 0) or vector(0)": ""},
        kind="stat",
        width=4,
        thresholds=((None, "green"), (1, "red")),
    ),
    Panel(
        "Virtual nodes ready",
        {f"sum(max by (cluster, node) (virtual_node_node_ready{{{_NODES}}}))": ""},
        kind="stat",
        width=4,
        thresholds=_UP,
    ),
    Panel(
        "Mirrored pods",
        {f'sum(max by (cluster) (virtual_node_cached_objects{{{_CLUSTERS}, resource="mirrored-pods"}}))': ""},
        kind="stat",
        width=4,
    ),
    Panel(
        "Leaders",
        {"sum by (component) (virtual_node_leader)": "{{component}}"},
        kind="stat",
        width=8,
        meaning="One for each component that runs with leader election; with mode Sharded one for each replica.",
        thresholds=_UP,
    ),
    Panel(
        "Lower clusters by replica",
        {"sum by (pod) (virtual_node_owned_cluster)": "{{pod}}"},
        meaning="With mode Sharded. The sum is the number of configured lower clusters.",
    ),
    Panel(
        "Pods",
        {
            f'max by (cluster) (virtual_node_cached_objects{{{_CLUSTERS}, resource="mirrored-pods"}})': "{{cluster}}",
        },
        meaning="Mirrored pods, by lower cluster.",
    ),
    Panel(
        "Lost and refused pods",
        {
            rate("virtual_node_pods_lost_total", "cluster", _CLUSTERS): "lost {{cluster}}",
            rate("virtual_node_pods_refused_total", "cluster, reason", _CLUSTERS): "{{reason}} {{cluster}}",
        },
        unit="ops",
    ),
]
_LAG = [
    *(
        Panel(
            f"Mirror lag {direction}",
            {
                quantile(
                    share, "virtual_node_mirror_seconds", "cluster", f'{_CLUSTERS}, direction="{direction}"'
                ): f"{name} {{{{cluster}}}}"
                for share, name in (("0.5", "p50"), ("0.99", "p99"))
            },
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
            {
                rate(
                    "virtual_node_mirror_seconds_bucket", "le", f'{_CLUSTERS}, direction="{direction}"'
                ): "{{le}}"
            },
            unit="s",
            kind="heatmap",
        )
        for direction in ("down", "up")
    ),
]
_QUEUES = [
    Panel("Keys that wait", {f"max by (component, name) (workqueue_depth{{{OWN_SERIES}}})": "{{name}}"}),
    Panel(
        "Longest work under way",
        {
            f"max by (component, name) (workqueue_longest_running_processor_seconds{{{OWN_SERIES}}})": "{{name}}",
            f"max by (component, name) (workqueue_unfinished_work_seconds{{{OWN_SERIES}}})": "all of {{name}}",
        },
        unit="s",
    ),
    Panel(
        "Queued and retried",
        {
            rate("workqueue_adds_total", "name", OWN_SERIES): "{{name}}",
            rate("workqueue_retries_total", "name", OWN_SERIES): "again {{name}}",
            rate("virtual_node_stale_sync_skips_total", "name", OWN_SERIES): "stale cache {{name}}",
        },
        unit="ops",
    ),
    Panel(
        "Waiting and working, p99",
        {
            quantile("0.99", "workqueue_queue_duration_seconds", "name", OWN_SERIES): "waits {{name}}",
            quantile("0.99", "workqueue_work_duration_seconds", "name", OWN_SERIES): "works {{name}}",
        },
        unit="s",
    ),
    Panel(
        "Event loop stalls, p99",
        {quantile("0.99", "virtual_node_event_loop_stall_seconds", "component", OWN_SERIES): "{{component}}"},
        unit="s",
        meaning="Delay of timers. More than 0.1 s for long: the process has too little CPU, or a function blocks the loop.",
    ),
]
_API = [
    Panel(
        "Requests",
        {rate("rest_client_requests_total", "cluster, verb", _REQUESTS): "{{cluster}} {{verb}}"},
        unit="reqps",
    ),
    Panel(
        "Requests that fail",
        {
            rate(
                "rest_client_requests_total", "cluster, code", f'{_REQUESTS}, code!~"2..|3.."'
            ): "{{cluster}} {{code}}"
        },
        unit="reqps",
        meaning="Code <error>: no response.",
    ),
    Panel(
        "Responses over a limit",
        {rate("rest_client_responses_rejected_total", "cluster, limit", _REQUESTS): "{{cluster}} {{limit}}"},
        unit="reqps",
        meaning="The API server sent more than a client accepts: a body, one watch event, or values of a body.",
    ),
    Panel(
        "Latency, p50",
        {
            quantile(
                "0.5", "rest_client_request_duration_seconds", "cluster, verb", _REQUESTS
            ): "{{cluster}} {{verb}}"
        },
        unit="s",
    ),
    Panel(
        "Latency, p99",
        {
            quantile(
                "0.99", "rest_client_request_duration_seconds", "cluster, verb", _REQUESTS
            ): "{{cluster}} {{verb}}"
        },
        unit="s",
    ),
    Panel(
        "Events",
        {
            rate("virtual_node_events_total", "cluster, outcome", _BOTH): "{{cluster}} {{outcome}}",
            rate(
                "virtual_node_events_dropped_total", "cluster, cause", _BOTH
            ): "{{cluster}} dropped: {{cause}}",
        },
        unit="ops",
    ),
]
_WATCHES = [
    Panel(
        "Watches begun again",
        {
            rate("virtual_node_watch_restarts_total", "cluster, resource, reason", _BOTH): (
                "{{cluster}} {{resource}} {{reason}}"
            )
        },
        unit="ops",
    ),
    Panel(
        "Objects in caches",
        {f"max by (cluster, resource) (virtual_node_cached_objects{{{_BOTH}}})": "{{cluster}} {{resource}}"},
    ),
    Panel(
        "Errors in event handlers",
        {rate("virtual_node_handler_errors_total", "cluster, resource", _BOTH): "{{cluster}} {{resource}}"},
        unit="ops",
        meaning="Always worth a report.",
    ),
]
_STREAMS = [
    Panel(
        "Streams open",
        {
            "sum by (verb) (virtual_node_kubelet_streams)": "{{verb}}",
            rate("virtual_node_kubelet_streams_refused_total", "limit"): "refused per second: {{limit}}",
        },
        width=8,
    ),
    Panel(
        "Bytes of streams that ended",
        {rate("virtual_node_kubelet_stream_bytes_total", "verb, to"): "{{verb}} to {{to}}"},
        unit="Bps",
        width=8,
    ),
    Panel(
        "Requests to the kubelet API",
        {rate("virtual_node_kubelet_http_requests_total", "path, code"): "{{path}} {{code}}"},
        unit="reqps",
        width=8,
    ),
]
_CAPACITY = [
    *(
        Panel(
            title,
            {
                "max by (cluster, node) "
                f'(virtual_node_node_allocatable{{{_NODES}, resource="{resource}"}})': "{{node}}"
            },
            unit=unit,
            width=6,
        )
        for title, resource, unit in (
            ("CPU offered", "cpu", "short"),
            ("Memory offered", "memory", "bytes"),
            ("Pods offered", "pods", "short"),
        )
    ),
    Panel(
        "Lower nodes",
        {f"max by (node, state) (virtual_node_lower_nodes{{{_NODES}}})": "{{node}} {{state}}"},
        width=6,
        meaning="Selected, and of those counting: Ready and not cordoned.",
    ),
]
_ROWS = [
    ("Overview", _OVERVIEW),
    ("Mirror lag", _LAG),
    ("Queues", _QUEUES),
    ("API calls", _API),
    ("Watches", _WATCHES),
    ("Streams", _STREAMS),
    ("Capacity", _CAPACITY),
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
