"""Metrics of lower nodes become those of a virtual node: only mirrored pods, monotonic counters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from virtual_node.translate.nodes import prometheus_text, stats, usage
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
# HELP probe_seconds Probes
# TYPE probe_seconds histogram
probe_seconds_bucket{le="+Inf",namespace="u-shop",pod="web",pod_uid="lower"} 3
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
    assert "# TYPE probe_seconds histogram" in merged


def test_a_histogram_has_one_header():
    """A second TYPE line is an error for some parsers."""
    text = "# HELP t T\n# TYPE t histogram\n" + "".join(
        f't_{part}namespace="u-shop",pod="web"}} 1\n' for part in ('bucket{le="1",', "sum{", "count{")
    )
    merged = prometheus_text.render(prometheus_text.ours(one, PODS) for one in (text, text))
    assert merged.count("# TYPE") == merged.count("# HELP") == 1
    assert len(merged.splitlines()) == 8


def test_similar_labels_are_left_alone():
    """With a prefix or suffix of the names."""
    line = (
        'm{exported_namespace="u-shop",exported_pod="web",id="/a,b",namespace="u-shop",pod="web",uid="l"} 1'
    )
    assert prometheus_text.translate(line, PODS) == (
        'm{exported_namespace="u-shop",exported_pod="web",id="/a,b",namespace="shop",pod="web",uid="uid-1"} 1'
    )
    assert prometheus_text.translate('m{my_namespace="u-shop",pod="web"} 1', PODS) is None
    assert prometheus_text.translate('m{pod="web",namespace="u-shop', PODS) is None
    assert prometheus_text.translate("m 1", PODS) is None


def test_node_samples_are_parsed_with_their_timestamps():
    """In milliseconds."""
    assert prometheus_text.node_samples(ONE) == {
        "node_cpu_usage_seconds_total": (10.5, 2000),
        "node_memory_working_set_bytes": (1e6, 2000),
    }


def test_a_node_that_joins_adds_only_later_usage():
    """Its past would look like a burst."""
    total = usage.CounterSum()
    assert total.update({"a": 100.0}) == 100
    assert total.update({"a": 101.0, "b": 5000.0}) == 101
    assert total.update({"a": 102.0, "b": 5001.0}) == 103


def test_a_node_that_leaves_or_reboots_does_not_reduce_the_sum():
    total = usage.CounterSum()
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
    total = usage.CounterSum()
    before = 0.0
    for values in rounds:
        now = total.update(values)
        assert now >= before - 1e-6
        before = now


def test_rates_become_counters():
    """Seconds between two samples, times the rate of the later; before the first, its window."""
    integral = usage.RateIntegral()
    assert integral.update("a", 2.0, at=100.0, window=15.0) == 30
    assert integral.update("a", 2.0, at=110.0, window=15.0) == 50
    assert integral.update("a", 2.0, at=105.0, window=15.0) == 50
    assert integral.update("a", 2.0, at=111.0, window=15.0) == 52
    integral.keep(set())
    assert integral.update("a", 0.0, at=120.0, window=15.0) == 0.001


def test_a_node_without_a_summary_gets_one_from_its_resource_metrics():
    """CPU and memory of node and containers, where known."""
    found = stats.from_resource_metrics(ONE)
    assert found["node"]["cpu"]["usageCoreNanoSeconds"] == 10_500_000_000
    assert found["node"]["memory"]["workingSetBytes"] == 1_000_000
    pods = {one["podRef"]["name"]: one for one in found["pods"]}
    assert pods["web"]["containers"] == [
        {"name": "c", "cpu": {"time": "1970-01-01T00:00:01Z", "usageCoreNanoSeconds": 1_500_000_000}}
    ]


def test_a_summary_is_the_sum_of_the_nodes_and_the_mirrored_pods():
    """The Summary API, field by field."""
    lower = [
        {
            "node": {
                "nodeName": name,
                "startTime": f"2026-01-0{number}T00:00:00Z",
                "cpu": {"time": f"t{number}", "usageNanoCores": 5, "usageCoreNanoSeconds": 7},
                "memory": {"workingSetBytes": 100},
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
