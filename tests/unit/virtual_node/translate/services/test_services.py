"""Services in the lower cluster: table and property tests of the translation."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from tests.unit.virtual_node.translate.copying import lower_copy, patch, view_of
from virtual_node.translate import services

CLUSTER = "upper-1"
ALWAYS = ["default/kubernetes", "kube-system/*"]


def upper(**spec):
    """Return an upper Service as its server returns it."""
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
    """Return the copy as the lower server stores it."""
    body = lower_copy("Service", source or upper(), view_of("shop"))
    body["metadata"] |= {"uid": "l-1", "resourceVersion": "3"}
    body["spec"] |= {"clusterIP": "10.97.1.1", "clusterIPs": ["10.97.1.1"], "ipFamilies": ["IPv4"], **spec}
    body["status"] = {"loadBalancer": {}}
    return body


def test_a_copy_has_no_selector_no_address_and_no_status():
    """Endpoints are mirrored, addresses are the lower cluster's."""
    body = lower_copy("Service", upper(), view_of("shop"))
    assert not {"selector", "clusterIP", "clusterIPs"} & set(body["spec"])
    assert set(body) == {"apiVersion", "kind", "metadata", "spec"}
    assert body["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 8080}]


def test_reserved_keys_of_users_are_not_copied():
    """A user's own would keep the copy forever, as if another installation always mirrored it."""
    service = upper()
    service["metadata"]["labels"][names.LABEL_NODE] = "vn-other"
    service["metadata"]["annotations"][services.always_mark("vn-other")] = "true"
    metadata = lower_copy("Service", service, view_of("x-shop"))["metadata"]
    assert not services.wanted_by(metadata["annotations"])
    assert names.LABEL_NODE not in metadata["labels"]


def test_metadata_has_the_owner_and_the_users_keys():
    """Labels and annotations are copied; uid, owners, finalizers and kubectl's own are not."""
    metadata = lower_copy("Service", upper(), view_of("x-shop"))["metadata"]
    assert metadata["labels"] == {
        "team": "a", names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "u-1",
    }  # fmt: skip
    assert (metadata["name"], metadata["namespace"]) == ("web", "x-shop")
    assert metadata["annotations"]["note"] == "kept"
    assert metadata["annotations"][names.ANNOTATION_UPPER_NAMESPACE] == "shop"
    assert names.ANNOTATION_LAST_APPLIED not in metadata["annotations"]
    assert not {"uid", "ownerReferences", "finalizers", "resourceVersion"} & set(metadata)


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_external_access_is_not_copied(kind):
    """Node ports, load balancers and external addresses."""
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
    spec = lower_copy("Service", source, view_of("shop"))["spec"]
    assert spec["type"] == "ClusterIP"
    assert spec["ports"] == [{"name": "http", "port": 80, "appProtocol": "http"}]
    assert set(spec) == {
        "type", "ports", "ipFamilies", "ipFamilyPolicy", "sessionAffinity", "internalTrafficPolicy",
    }  # fmt: skip


def test_headless_stays_headless():
    """``clusterIP: None`` makes DNS answer with the pods."""
    spec = lower_copy("Service", upper(clusterIP="None"), view_of("shop"))["spec"]
    assert spec["clusterIP"] == "None"


def test_an_external_name_is_only_a_name():
    """Without families and traffic policy, which servers refuse there."""
    source = {
        **upper(),
        "spec": {"type": "ExternalName", "externalName": "db.example.com", "sessionAffinity": "None"},
    }
    spec = lower_copy("Service", source, view_of("shop"))["spec"]
    assert spec == {
        "type": "ExternalName", "externalName": "db.example.com", "ports": [], "sessionAffinity": "None",
    }  # fmt: skip


def test_fields_that_affect_clients_are_kept():
    """Affinity, traffic policies and early publication."""
    wanted = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "internalTrafficPolicy": "Local",
        "publishNotReadyAddresses": True,
        "trafficDistribution": "PreferClose",
    }
    spec = lower_copy("Service", upper(**wanted), view_of("shop"))["spec"]
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
def test_families_are_preferred_not_required(policy, families, expected):
    """A lower cluster with one family still accepts the Service; the order is kept."""
    spec = lower_copy("Service", upper(ipFamilyPolicy=policy, ipFamilies=families))["spec"]
    assert {key: spec[key] for key in ("ipFamilyPolicy", "ipFamilies") if key in spec} == expected


def test_without_families_the_lower_cluster_chooses():
    """The second try, if the lower cluster lacks a family."""
    source = upper(ipFamilies=["IPv6"])
    spec = services.bodies(source, lower_copy("Service", source), view_of())[-1]["spec"]
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
def test_always_mirrored_by_pattern(namespace, name, expected):
    """The default set of tensile-kube, and no similar names."""
    assert services.is_always(f"{namespace}/{name}", ALWAYS) is expected


# --- differences ------------------------------------------------------------------------------------


def desired(source=None):
    """What the controller compares with."""
    return lower_copy("Service", source or upper(), view_of("shop"))


def test_a_current_copy_needs_no_patch():
    """Fields that the server adds are no difference."""
    assert patch("Service", lower(), desired()) is None
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
    """Any lower change that redirects traffic."""
    assert patch("Service", lower(**meddled), desired()) == {"spec": repair}


def test_the_lower_clusters_own_choices_are_no_drift():
    """A first family that it had to choose, and defaults that an older server omits."""
    source = upper(ipFamilyPolicy="PreferDualStack", ipFamilies=["IPv6", "IPv4"])
    assert patch("Service", lower(source), desired(source)) is None
    assert not services.must_replace(lower(source), desired(source))
    old = lower()
    for field in ("sessionAffinity", "internalTrafficPolicy", "ipFamilyPolicy", "ipFamilies"):
        del old["spec"][field]
    assert patch("Service", old, desired()) is None


def test_a_second_family_is_added_and_removed():
    """Added by the policy alone; removed with its address."""
    dual = upper(ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv4", "IPv6"])
    assert patch("Service", lower(), desired(dual)) == {"spec": {"ipFamilyPolicy": "PreferDualStack"}}
    current = lower(dual, ipFamilies=["IPv4", "IPv6"], clusterIPs=["10.97.1.1", "fd00::1"])
    assert patch("Service", current, desired()) == {
        "spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIPs": ["10.97.1.1"]}
    }


def test_labels_removed_in_the_upper_cluster_are_removed_and_others_stay():
    current = lower()
    current["metadata"]["labels"]["theirs"] = "x"
    source = upper()
    del source["metadata"]["labels"]["team"]
    change = patch("Service", current, desired(source))
    assert change is not None
    assert change["metadata"]["labels"] == {"team": None}
    record = json.loads(change["metadata"]["annotations"][names.ANNOTATION_APPLIED])
    assert {field: list(keys) for field, keys in record.items()} == {"annotations": ["note"]}


def test_a_broken_annotation_of_applied_fields_is_written_again():
    current = lower()
    current["metadata"]["annotations"][names.ANNOTATION_APPLIED] = "{"
    change = patch("Service", current, desired())
    assert change is not None
    assert set(change["metadata"]["annotations"]) == {names.ANNOTATION_APPLIED}


@pytest.mark.parametrize(
    "source",
    [
        upper(clusterIP="None"),
        upper(type="ExternalName", externalName="a.b"),
        {**upper(), "metadata": {**upper()["metadata"], "uid": "u-2"}},
    ],
)
def test_immutable_fields_need_a_new_object(source):
    """Headless or not, a name or not, and the upper Service of the copy."""
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
    """For any upper Service one merge patch suffices, and then there is no difference."""
    current, wanted = lower(), desired(upper(**spec))
    change = patch("Service", current, wanted)
    merged = copy.deepcopy(current)
    for key, value in ((change or {}).get("spec") or {}).items():
        if value is None:
            merged["spec"].pop(key, None)
        else:
            merged["spec"][key] = value
    assert patch("Service", merged, wanted) is None
    assert merged["spec"]["clusterIP"] == "10.97.1.1"
