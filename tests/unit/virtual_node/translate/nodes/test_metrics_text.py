"""Metrics of lower nodes become those of a virtual node: only mirrored pods, monotonic counters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from virtual_node.translate.nodes import prometheus_text, stats
from virtual_node.translate.nodes.prometheus_text import PodNames

PODS = {("u-shop", "web"): PodNames("shop", "web", "uid-1")}
ONE = """# HELP container_cpu_usage_seconds_total CPU
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="u-shop",pod="web"} 1.5 1000
container_cpu_usage_seconds_total{container="c",namespace="kube-system",pod="dns"} 9 1000
# HELP node_cpu_usage_seconds_total CPU
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 10.5 2000
node_memory_working_set_bytes 1e+06 2000
# HELP prober_seconds Probes
# TYPE prober_seconds histogram
prober_seconds_bucket{le="+Inf",namespace="u-shop",pod="web",pod_uid="lower"} 3
scrape_error 0
"""
TWO = """# HELP container_cpu_usage_seconds_total CPU
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="d",namespace="u-shop",pod="web"} 2 1000
"""


def test_only_mirrored_pods_under_their_upper_names():
    """Namespace, name and uid; data of other pods stays in the lower cluster."""
    merged = prometheus_text.render(prometheus_text.ours(text, PODS) for text in (ONE, TWO))
    assert 'container="c",namespace="shop",pod="web"' in merged
    assert 'pod_uid="uid-1"' in merged
    assert "kube-system" not in merged
    assert "node_cpu" not in merged
    assert "scrape_error" not in merged


def test_the_merged_text_is_well_formed():
    """Lines of one metric are contiguous, under one header."""
    merged = prometheus_text.render(prometheus_text.ours(text, PODS) for text in (ONE, TWO))
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    assert len(families["container_cpu_usage_seconds"].samples) == 2
    assert merged.count("# TYPE container_cpu_usage_seconds_total") == 1
    assert "# TYPE prober_seconds histogram" in merged


def test_a_histogram_has_one_header():
    """A second TYPE line is an error for some parsers."""
    text = "# HELP pod_t T\n# TYPE pod_t histogram\n" + "".join(
        f'pod_t_{part}namespace="u-shop",pod="web"}} 1\n' for part in ('bucket{le="1",', "sum{", "count{")
    )
    merged = prometheus_text.render(prometheus_text.ours(one, PODS) for one in (text, text))
    assert merged.count("# TYPE") == merged.count("# HELP") == 1
    assert len(merged.splitlines()) == 8


def test_other_labels_are_kept():
    """After container, namespace and pod; values may have escapes, braces and commas."""
    labels = r'id="/a,b}",image="a\"b\\",le="+Inf",name="x=\"1\"",'
    line = f'container_x_bucket{{{labels}namespace="u-shop",pod="web",container="",uid="l"}} 1.5e+06 1700000000000'
    assert prometheus_text.translate(line, PODS) == (
        'container_x_bucket{container="",namespace="shop",pod="web",'
        r'id="/a,b}",image="a\"b\\",le="+Inf",name="x=\"1\"",uid="uid-1"} 1.5e+06 1700000000000'
    )


def read_by_searching(line: str) -> tuple[str, str, str]:
    """Return container, namespace and pod as metrics-server reads them (pkg/scraper/client/resource/decode.go)."""
    labels = line[line.find("{") :]

    def value(tag: str) -> str:
        begin = labels.index(tag) + len(tag)
        return labels[begin : labels.index('"', begin)]

    return value('container="'), value('namespace="'), value('pod="')


_OURS = 'container="app",namespace="u-shop",pod="web"'


@pytest.mark.parametrize(
    "labels",
    [
        f'xpod="ledger-0",xnamespace="bank",{_OURS}',
        f'xcontainer="x",{_OURS}',
        f'exported_pod="ledger-0",exported_namespace="bank",{_OURS}',
        f'pod="ledger-0",namespace="bank",{_OURS}',
        f'{_OURS},pod="ledger-0"',
        f'{_OURS},id="a",id="b"',
        f'x-pod="ledger-0",{_OURS}',
        f' pod="ledger-0",{_OURS}',
        f'pod ="ledger-0",{_OURS}',
        f'pod="ledger-0"{_OURS}',
        f'a="1"b="2",,{_OURS}',
        f",{_OURS}",
        f"{_OURS},,",
        f"pod='ledger-0',{_OURS}",
        f'{{pod="ledger-0",{_OURS}',
        f'id="a\tb",{_OURS}',
        f'id="a\\t",{_OURS}',
        f'id="a\r",{_OURS}',
        f'id="a\\",{_OURS}',
        f'9="x",{_OURS}',
        f'é="x",{_OURS}',
        'container="a,pod=\\"ledger-0",namespace="u-shop",pod="web"',
        'container="pod=",namespace="u-shop",pod="web"',
        'container="A",namespace="u-shop",pod="web"',
        'namespace="u-shop"',
    ],
)
def test_a_line_that_a_reader_could_take_for_another_pods_is_dropped(labels: str):
    assert prometheus_text.translate(f"container_cpu_usage_seconds_total{{{labels}}} 1", PODS) is None


@pytest.mark.parametrize(
    "line",
    [
        f"kube_pod_owner{{{_OURS}}} 1", f"up{{{_OURS}}} 1", f"container_x{{{_OURS}}} 0x10", f"container_x{{{_OURS}}} 1_0",
        f"container_x{{{_OURS}}} ١", f"container_x{{{_OURS}}} 1 ١", f"container_x{{{_OURS}}} 1 99999999999999",
        f"container_x{{{_OURS}}} 1 9999999999999", f"container_x{{{_OURS}}}  1", f"container_x{{{_OURS}}} 1 # {{}} 2",
        f'container_x{{{_OURS}}} {"1" * 99}', f'container_x{{{_OURS},id="{"a" * 20_000}"}} 1', f"containér_x{{{_OURS}}} 1",
        f"container_x{{{_OURS}}} 1 1\r", f"container_x {{{_OURS}}} 1", f"container_x{{{_OURS}", "container_x 1",
    ],
)  # fmt: skip
def test_other_metrics_and_malformed_values_are_dropped(line: str):
    assert prometheus_text.translate(line, PODS) is None


def test_a_decoy_in_a_value_does_not_mislead_a_reader_that_searches():
    """It finds the first match, and the upper names are first."""
    line = f'container_x{{id="pod=",image="namespace=",name="container=",{_OURS}}} 1'
    made = prometheus_text.translate(line, PODS)
    assert made is not None
    assert read_by_searching(made) == ("app", "shop", "web")


def test_headers_are_rebuilt():
    """A header is one line of a known form, once for each metric."""
    text = "\n".join(
        [
            "# HELP container_x a\x1b[31m\x85b", "# HELP container_x again", "# TYPE container_x counter",
            "# TYPE container_x gauge", "# TYPE container_x nonsense", "# HELP évil x", "# EOF", "# UNIT container_x s",
            "# HELP container_y " + "x" * 5000,
            f"container_x{{{_OURS}}} 1", f"container_y{{{_OURS}}} 1",
        ]
    )  # fmt: skip
    lines = prometheus_text.render([prometheus_text.ours(text, PODS)]).splitlines()
    assert lines[:2] == ["# HELP container_x a [31m b", "# TYPE container_x counter"]
    assert len(lines) == 5
    assert max(map(len, lines)) < 1100


_PIECES = st.sampled_from(
    ["container_x", "{", "}", ",", '"', "\\", "=", " ", "1", "\n", "pod", "namespace", "container", "x", _OURS,
     'pod="ledger-0"', 'namespace="bank"', 'xpod="ledger-0"', "\u2028", "\r", "# HELP container_x", "é"]
)  # fmt: skip


@given(pieces=st.lists(_PIECES, max_size=40))
@example(pieces=["container_x", "{", 'xpod="ledger-0"', ",", _OURS, "}", " ", "1"])
def test_every_reader_finds_owned_pods_only(pieces: list[str]):
    """For any text of a lower kubelet: readers that parse, and those that search."""
    valid = f"container_x{{{_OURS}}} 1"
    made = prometheus_text.render([prometheus_text.ours("".join(pieces) + "\n" + valid, PODS)])
    for family in text_string_to_metric_families(made):
        for one in family.samples:
            assert (one.labels["namespace"], one.labels["pod"]) == ("shop", "web")
    for line in made.split("\n"):
        if line and not line.startswith("#"):
            assert read_by_searching(line)[1:] == ("shop", "web")


def test_node_samples_are_parsed_with_their_timestamps():
    """In milliseconds."""
    assert prometheus_text.node_samples(ONE) == {
        "node_cpu_usage_seconds_total": (10.5, 2000),
        "node_memory_working_set_bytes": (1e6, 2000),
    }


def test_a_node_that_joins_adds_only_later_usage():
    """Its past would look like a burst."""
    total = stats.CounterSum()
    assert total.update({"a": 100.0}) == 100
    assert total.update({"a": 101.0, "b": 5000.0}) == 101
    assert total.update({"a": 102.0, "b": 5001.0}) == 103


def test_a_node_that_leaves_or_reboots_does_not_reduce_the_sum():
    total = stats.CounterSum()
    total.update({"a": 0.0, "b": 0.0})
    assert total.update({"a": 10.0, "b": 10.0}) == 20
    assert total.update({"a": 11.0}) == 21
    assert total.update({"a": 2.0}) == 23


@given(
    rounds=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.floats(min_value=0, max_value=1e6)), max_size=20
    )
)
def test_the_sum_is_monotonic(rounds):
    """For any sequence of nodes that join, leave and reboot."""
    total = stats.CounterSum()
    before = 0.0
    for values in rounds:
        now = total.update(values)
        assert now >= before - 1e-6
        before = now


def test_rates_become_counters():
    """Seconds between two samples, times the rate of the later; before the first, its window."""
    integral = stats.RateIntegral()
    assert integral.update("a", 2.0, at=100.0, window=15.0) == 30
    assert integral.update("a", 2.0, at=110.0, window=15.0) == 50
    assert integral.update("a", 2.0, at=105.0, window=15.0) == 50
    assert integral.update("a", 2.0, at=111.0, window=15.0) == 52
    integral.keep(set())
    assert integral.update("a", 0.0, at=120.0, window=15.0) == 0.001


def test_a_node_without_a_summary_gets_one_from_its_resource_metrics():
    """Each series of a kubelet of 1.37 that a Summary has a field for."""
    labels = 'container="c",namespace="u-shop",pod="web"'
    more = (
        f"container_memory_working_set_bytes{{{labels}}} 2e+06 1000\n"
        f"container_swap_usage_bytes{{{labels}}} 7 1000\ncontainer_swap_limit_bytes{{{labels}}} 9 1000\n"
        f"container_start_time_seconds{{{labels}}} 1.5e+09\nnode_swap_usage_bytes 3 2000\n"
        'pod_cpu_usage_seconds_total{namespace="u-shop",pod="web"} 2 3000\n'
        'pod_swap_usage_bytes{namespace="u-shop",pod="job"} 8 3000\n'
        'container_start_time_seconds{container="d",namespace="u-shop",pod="job"} NaN\n'
    )
    found = stats.from_resource_metrics(ONE + more)
    assert found["node"]["cpu"]["usageCoreNanoSeconds"] == 10_500_000_000
    assert found["node"]["memory"]["workingSetBytes"] == 1_000_000
    assert found["node"]["swap"]["swapUsageBytes"] == 3
    pods = {one["podRef"]["name"]: one for one in found["pods"]}
    first = "1970-01-01T00:00:01Z"
    assert pods["web"]["containers"] == [
        {
            "name": "c",
            "cpu": {"time": first, "usageCoreNanoSeconds": 1_500_000_000},
            "memory": {"time": first, "workingSetBytes": 2_000_000},
            "swap": {"time": first, "swapUsageBytes": 7},
            "startTime": "2017-07-14T02:40:00Z",
        }
    ]
    assert pods["web"]["cpu"] == {"time": "1970-01-01T00:00:03Z", "usageCoreNanoSeconds": 2_000_000_000}
    assert pods["job"]["swap"]["swapUsageBytes"] == 8
    assert pods["job"]["containers"] == []


def test_a_summary_is_the_sum_of_the_nodes_and_the_mirrored_pods():
    """The Summary API, field by field."""
    lower = [
        {
            "node": {
                "nodeName": name,
                "startTime": f"2026-01-0{number}T00:00:00Z",
                "cpu": {"time": f"t{number}", "usageNanoCores": 5, "usageCoreNanoSeconds": 7},
                "memory": {"workingSetBytes": 100},
                "swap": {"swapUsageBytes": 2, "swapAvailableBytes": 3},
                "rlimit": {"time": f"t{number}", "maxpid": 10, "curproc": number},
                "runtime": {"imageFs": {"usedBytes": 4}},
            },
            "pods": [
                {
                    "podRef": {"namespace": "u-shop", "name": "web", "uid": "lower"},
                    "containers": [{"name": "c"}],
                },
                {"podRef": {"namespace": "kube-system", "name": "dns", "uid": "x"}},
            ]
            if number == 1
            else [],
        }
        for number, name in ((1, "n1"), (2, "n2"))
    ]
    found = stats.summary(lower, PODS, node_name="virtual", cpu_seconds=1.5)
    assert found["node"] == {
        "nodeName": "virtual",
        "startTime": "2026-01-01T00:00:00Z",
        "cpu": {"usageNanoCores": 10, "usageCoreNanoSeconds": 1_500_000_000, "time": "t2"},
        "memory": {"workingSetBytes": 200},
        "swap": {"swapUsageBytes": 4, "swapAvailableBytes": 6},
        "rlimit": {"maxpid": 20, "curproc": 3, "time": "t2"},
        "runtime": {"imageFs": {"usedBytes": 8}},
    }
    (pod,) = found["pods"]
    assert pod["podRef"] == {"name": "web", "namespace": "shop", "uid": "uid-1"}
    assert pod["containers"] == [{"name": "c"}]
    assert stats.summary([], {}, node_name="virtual") == {"node": {"nodeName": "virtual"}, "pods": []}


def test_a_volumes_claim_is_named_in_the_upper_namespace():
    """Its name is the same in both."""
    reference = {"name": "data", "namespace": "u-shop"}
    pod = {
        "podRef": {"namespace": "u-shop", "name": "web"},
        "volume": [{"name": "v", "pvcRef": reference}, {"name": "w"}],
    }
    (found,) = stats.summary([{"pods": [pod]}], PODS, node_name="virtual")["pods"]
    assert found["volume"] == [{"name": "v", "pvcRef": {"name": "data", "namespace": "shop"}}, {"name": "w"}]


_SUMMARY: dict[str, Any] = {
    "node": {"startTime": "2026-01-01T00:00:00Z", "cpu": {"time": "2026-01-01T00:00:00Z", "usageNanoCores": 5},
        "fs": {"usedBytes": 1}, "rlimit": {"maxpid": 2}, "runtime": {"imageFs": {"inodes": 1}, "containerFs": {"inodes": 1}}},
    "pods": [{
        "podRef": {"name": "web", "namespace": "u-shop"},
        "startTime": "2026-01-01T00:00:00Z",
        "containers": [{"name": "c", "memory": {"workingSetBytes": 1, "psi": {"full": {"avg10": 0.5}}}, "rootfs": {"inodes": 3}}],
        "network": {"name": "eth0", "rxBytes": 1, "interfaces": [{"name": "eth0", "txErrors": 0}]},
        "volume": [{"name": "v", "usedBytes": 1, "pvcRef": {"name": "data", "namespace": "u-shop"}}],
        "ephemeral-storage": {"usedBytes": 2}, "process_stats": {"process_count": 4}, "swap": {"swapUsageBytes": 0},
    }],
}  # fmt: skip


def test_the_known_fields_of_a_summary_are_kept():
    assert stats.read(_SUMMARY) == _SUMMARY


@pytest.mark.parametrize("sent", [float("nan"), float("inf"), -1, 2**64, True, "5", [5], {"a": 1}], ids=str)
def test_a_number_that_is_none_is_left_out(sent: Any):
    """The sum over nodes would become one, too, or fail for all of them."""
    found = stats.read({"node": {"cpu": {"usageNanoCores": sent}}, "x": sent, "pods": None})
    assert found["node"]["cpu"] == {}
    assert stats.summary([found], PODS, node_name="virtual")["pods"] == []


def test_unknown_fields_and_pods_with_invalid_names_are_left_out():
    huge = "x" * 100_000
    pods = [
        {**_SUMMARY["pods"][0], "x": huge},
        {"podRef": {"name": huge, "namespace": "u-shop"}},
        {"podRef": None},
        huge,
    ]
    found = stats.read({**_SUMMARY, "pods": pods, "x": huge})
    assert found == _SUMMARY


def test_samples_of_containers_that_the_upper_pod_does_not_have_are_dropped():
    """Readers compare usage with the requests of the upper pod. Samples of the whole pod and of its cgroup stay."""
    pods = {("u-shop", "web"): PodNames("shop", "web", "uid-1", frozenset({"main"}))}
    lines = {
        container: f'container_memory_usage_bytes{{container="{container}",namespace="u-shop",pod="web"}} 1'
        for container in ("main", "proxy", "POD", "")
    }
    assert [container for container, line in lines.items() if prometheus_text.translate(line, pods)] == [
        "main",
        "POD",
        "",
    ]
    assert prometheus_text.translate('pod_memory_working_set_bytes{namespace="u-shop",pod="web"} 1', pods)
