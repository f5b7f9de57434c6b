"""Services as they are below: table and property tests of the pure translation."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.api import names
from virtual_node.translate.services import services

CLUSTER = "upper-1"
ALWAYS = ["default/kubernetes", "kube-system/*"]


def upper(**spec):
    """An upper Service as its server gives it."""
    return {
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "u-1",
            "resourceVersion": "7",
            "labels": {"team": "a"},
            "annotations": {names.ANNOTATION_LAST_APPLIED: "{}", "note": "kept"},
            "ownerReferences": [{"kind": "Thing"}],
            "finalizers": ["service.kubernetes.io/load-balancer-cleanup"],
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.3.4",
            "clusterIPs": ["10.96.3.4"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "selector": {"app": "web"},
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}],
            **spec,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}},
    }


def lower(source=None, **spec):
    """What the lower server makes of the copy."""
    body = services.lower_service(source or upper(), namespace="shop", cluster_id=CLUSTER)
    body["metadata"] |= {"uid": "l-1", "resourceVersion": "3"}
    body["spec"] |= {"clusterIP": "10.97.1.1", "clusterIPs": ["10.97.1.1"], "ipFamilies": ["IPv4"], **spec}
    body["status"] = {"loadBalancer": {}}
    return body


def test_a_copy_has_no_selector_no_address_and_no_status():
    """Endpoints are mirrored, addresses are the lower cluster's, and status is nobody's to copy."""
    body = services.lower_service(upper(), namespace="shop", cluster_id=CLUSTER)
    assert not {"selector", "clusterIP", "clusterIPs"} & set(body["spec"])
    assert set(body) == {"apiVersion", "kind", "metadata", "spec"}
    assert body["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 8080}]


def test_users_keys_under_our_domain_do_not_reach_the_copy():
    """A user's own would keep the copy for ever, as if another installation always wanted it."""
    service = upper()
    service["metadata"]["labels"][names.LABEL_NODE] = "vn-other"
    service["metadata"]["annotations"][services.always_mark("vn-other")] = "true"
    metadata = services.lower_service(service, namespace="x-shop", cluster_id=CLUSTER)["metadata"]
    assert not services.wanted_by(metadata["annotations"])
    assert names.LABEL_NODE not in metadata["labels"]


def test_metadata_says_whose_it_is_and_keeps_what_users_wrote():
    """Labels and annotations are carried; uid, owners, finalizers and kubectl's own are not."""
    metadata = services.lower_service(upper(), namespace="x-shop", cluster_id=CLUSTER)["metadata"]
    assert metadata["labels"] == {
        "team": "a", names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "u-1",
    }  # fmt: skip
    assert (metadata["name"], metadata["namespace"]) == ("web", "x-shop")
    assert metadata["annotations"]["note"] == "kept"
    assert metadata["annotations"][names.ANNOTATION_UPPER_NAMESPACE] == "shop"
    assert names.ANNOTATION_LAST_APPLIED not in metadata["annotations"]
    assert not {"uid", "ownerReferences", "finalizers", "resourceVersion"} & set(metadata)


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_ways_in_from_outside_stay_above(kind):
    """Node ports, load balancers and external addresses are never asked of the lower cluster."""
    source = upper(
        type=kind,
        ports=[{"name": "http", "port": 80, "nodePort": 30080, "appProtocol": "http"}],
        externalTrafficPolicy="Local",
        healthCheckNodePort=31000,
        loadBalancerIP="1.2.3.4",
        loadBalancerClass="x/y",
        loadBalancerSourceRanges=["1.0.0.0/8"],
        allocateLoadBalancerNodePorts=True,
        externalIPs=["5.6.7.8"],
    )
    spec = services.lower_service(source, namespace="shop", cluster_id=CLUSTER)["spec"]
    assert spec["type"] == "ClusterIP"
    assert spec["ports"] == [{"name": "http", "port": 80, "appProtocol": "http"}]
    assert set(spec) == {
        "type", "ports", "ipFamilies", "ipFamilyPolicy", "sessionAffinity", "internalTrafficPolicy",
    }  # fmt: skip


def test_headless_stays_headless():
    """``clusterIP: None`` is what makes DNS answer with the pods."""
    spec = services.lower_service(upper(clusterIP="None"), namespace="shop", cluster_id=CLUSTER)["spec"]
    assert spec["clusterIP"] == "None"


def test_an_external_name_is_only_a_name():
    """No families and no traffic policy, which servers refuse there."""
    source = {
        **upper(),
        "spec": {"type": "ExternalName", "externalName": "db.example.com", "sessionAffinity": "None"},
    }
    spec = services.lower_service(source, namespace="shop", cluster_id=CLUSTER)["spec"]
    assert spec == {
        "type": "ExternalName", "externalName": "db.example.com", "ports": [], "sessionAffinity": "None",
    }  # fmt: skip


def test_what_pods_feel_is_kept():
    """Affinity, traffic policies and early publication change how clients are served."""
    wanted = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "internalTrafficPolicy": "Local",
        "publishNotReadyAddresses": True,
        "trafficDistribution": "PreferClose",
    }
    spec = services.lower_service(upper(**wanted), namespace="shop", cluster_id=CLUSTER)["spec"]
    assert {key: spec[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("policy", "families", "expected"),
    [
        ("SingleStack", ["IPv6"], {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}),
        ("PreferDualStack", ["IPv4"], {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"]}),
        (
            "RequireDualStack",
            ["IPv6", "IPv4"],
            {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        ),
        (None, None, {}),
    ],
)
def test_families_are_asked_for_never_demanded(policy, families, expected):
    """A lower cluster with one family still takes the Service; the order says which is first."""
    spec = services.lower_service(
        upper(ipFamilyPolicy=policy, ipFamilies=families), namespace="shop", cluster_id=CLUSTER
    )["spec"]
    assert {key: spec[key] for key in ("ipFamilyPolicy", "ipFamilies") if key in spec} == expected


def test_without_families_the_lower_cluster_chooses():
    """The second try, where the lower cluster has not the families of the upper."""
    spec = services.lower_service(
        upper(ipFamilies=["IPv6"]), namespace="shop", cluster_id=CLUSTER, with_families=False
    )["spec"]
    assert spec["ipFamilyPolicy"] == "PreferDualStack"
    assert "ipFamilies" not in spec


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("default", "kubernetes", True),
        ("default", "other", False),
        ("kube-system", "anything", True),
        ("kube-systems", "anything", False),
    ],
)
def test_always_wanted_by_pattern(namespace, name, expected):
    """The default set of tensile-kube, and nothing that only looks like it."""
    assert services.is_always(namespace, name, ALWAYS) is expected


# --- differences ------------------------------------------------------------------------------------


def desired(source=None):
    """What the controller compares with."""
    return services.lower_service(source or upper(), namespace="shop", cluster_id=CLUSTER)


def test_a_copy_in_step_needs_nothing():
    """What the server adds is no difference."""
    assert services.service_patch(lower(), desired()) is None
    assert not services.must_replace(lower(), desired())


@pytest.mark.parametrize(
    ("meddled", "repair"),
    [
        ({"selector": {"app": "evil"}}, {"selector": None}),
        ({"externalIPs": ["9.9.9.9"]}, {"externalIPs": None}),
        ({"sessionAffinity": "ClientIP"}, {"sessionAffinity": "None"}),
        (
            {
                "type": "NodePort",
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30001}],
            },
            {"type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]},
        ),
        ({"trafficDistribution": "PreferClose"}, {"trafficDistribution": None}),
    ],
)
def test_drift_is_repaired(meddled, repair):
    """Whatever leads traffic elsewhere below is set back."""
    assert services.service_patch(lower(**meddled), desired()) == {"spec": repair}


def test_the_lower_clusters_own_choices_are_no_drift():
    """A first family that it had to choose itself, and defaults left out by an older server."""
    source = upper(ipFamilyPolicy="PreferDualStack", ipFamilies=["IPv6", "IPv4"])
    assert services.service_patch(lower(source), desired(source)) is None
    assert not services.must_replace(lower(source), desired(source))
    old = lower()
    for field in ("sessionAffinity", "internalTrafficPolicy", "ipFamilyPolicy", "ipFamilies"):
        del old["spec"][field]
    assert services.service_patch(old, desired()) is None


def test_a_second_family_comes_and_goes():
    """Asked for by the policy alone; given up along with its address."""
    dual = upper(ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv4", "IPv6"])
    assert services.service_patch(lower(), desired(dual)) == {"spec": {"ipFamilyPolicy": "PreferDualStack"}}
    current = lower(dual, ipFamilies=["IPv4", "IPv6"], clusterIPs=["10.97.1.1", "fd00::1"])
    assert services.service_patch(current, desired()) == {
        "spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIPs": ["10.97.1.1"]}
    }


def test_labels_removed_above_go_and_those_of_others_stay():
    """Only what we once set is removed."""
    current = lower()
    current["metadata"]["labels"]["theirs"] = "x"
    source = upper()
    del source["metadata"]["labels"]["team"]
    patch = services.service_patch(current, desired(source))
    assert patch is not None
    assert patch["metadata"]["labels"] == {"team": None}
    assert json.loads(patch["metadata"]["annotations"][names.ANNOTATION_APPLIED]) == {"annotations": ["note"]}


def test_a_broken_record_of_what_was_applied_is_written_anew():
    """Meddling with our annotation costs nothing but its repair."""
    current = lower()
    current["metadata"]["annotations"][names.ANNOTATION_APPLIED] = "{"
    patch = services.service_patch(current, desired())
    assert patch is not None
    assert set(patch["metadata"]["annotations"]) == {names.ANNOTATION_APPLIED}


@pytest.mark.parametrize(
    "source",
    [
        upper(clusterIP="None"),
        upper(type="ExternalName", externalName="a.b"),
        {**upper(), "metadata": {**upper()["metadata"], "uid": "u-2"}},
    ],
)
def test_what_is_fixed_at_creation_takes_a_new_object(source):
    """Headless or not, a name or not, and which upper Service it stands for."""
    assert services.must_replace(lower(), desired(source))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "sessionAffinity": st.sampled_from(["None", "ClientIP"]),
            "internalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
            "publishNotReadyAddresses": st.booleans(),
            "trafficDistribution": st.sampled_from(["PreferClose", "PreferSameZone"]),
            "externalIPs": st.just(["1.1.1.1"]),
            "ports": st.lists(
                st.fixed_dictionaries(
                    {"port": st.integers(1, 65535), "protocol": st.sampled_from(["TCP", "UDP", "SCTP"])},
                    optional={"nodePort": st.integers(30000, 32767), "name": st.just("http")},
                ),
                max_size=3,
            ),
        },
    )
)
def test_a_patch_leads_to_the_desired_copy(spec):
    """Whatever the upper Service becomes, one merge patch brings the copy there, and then there is none."""
    current, wanted = lower(), desired(upper(**spec))
    patch = services.service_patch(current, wanted)
    merged = copy.deepcopy(current)
    for key, value in ((patch or {}).get("spec") or {}).items():
        if value is None:
            merged["spec"].pop(key, None)
        else:
            merged["spec"][key] = value
    assert services.service_patch(merged, wanted) is None
    assert merged["spec"]["clusterIP"] == "10.97.1.1"
