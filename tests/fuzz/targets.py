"""Every function that parses external bytes, with valid inputs to start from."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from multidict import MultiDict

from clusterset.model import cluster_selector
from clusterset.model.moving import node_avoidance
from controller_runtime import errors
from controller_runtime.apimachinery import decoding, matching, quantity, timestamps
from controller_runtime.auth import credentials, kubeconfig
from controller_runtime.auth.credentials import Plugin
from controller_runtime.client import collection, dialing
from controller_runtime.client import collection as wire
from controller_runtime.objects import decode_object
from controller_runtime.process import flags
from multi_scheduler import config as scheduler_config
from multi_scheduler.extender import protocol
from tests.fuzz import lower_objects, reviews
from tests.fuzz.target import MALFORMED, Target
from virtual_node.config import file
from virtual_node.kubelet import auth, logs
from virtual_node.kubelet.auth import (
    BEARER_PROTOCOL,
    websocket_bearer_token,
    websocket_protocols,
)
from virtual_node.kubelet.base import Refusal
from virtual_node.kubelet.streams import dial


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _quantity(raw: bytes) -> None:
    text = _text(raw)
    for count in (quantity.milli(text), quantity.amount(text)):
        assert -(2**63) * 1000 <= count <= 2**63 * 1000


def _selector(raw: bytes) -> None:
    assert matching.parse_selector(_text(raw))({"zone": "a"}) in {True, False}


def _label_selector(raw: bytes) -> None:
    found = decoding.decode(raw)
    if isinstance(found, dict):
        matching.compile_selector(found)({"zone": "a"})


def _cluster_selector(raw: bytes) -> None:
    found = cluster_selector.parse(_text(raw))
    cluster_selector.resolve(found, node_name="vn", node_labels={"clusterID": "a"})


def _timestamp(raw: bytes) -> None:
    moment = timestamps.parse(_text(raw))
    assert moment.tzinfo is not None
    if moment.year not in {1, 9999}:  # a time zone may move these out of the calendar
        timestamps.rfc3339(moment)


def _avoidance(raw: bytes) -> None:
    for owner, (_, nodes) in node_avoidance.parse_all({"owner": _text(raw)}).items():
        assert owner == "owner"
        node_avoidance.active(nodes, now=datetime.now(UTC), freeze_period=300)


def _response_head(raw: bytes) -> None:
    head = dialing.ResponseHead.parse(raw)
    assert 100 <= head.status <= 999
    again = dialing.ResponseHead.parse(head.encode().removesuffix(dialing.END_OF_HEAD))
    assert again == head


def _log_options(raw: bytes) -> None:
    for name, value in logs.log_options(dial.parse_query(_text(raw))).items():
        assert "&" not in name
        assert value.isprintable()


def _exec_options(raw: bytes) -> None:
    query = dial.parse_query(_text(raw))
    target = dial.target_path("/exec", dial.exec_query(query, container="main"))
    assert dialing.RequestHead("POST", target, ()).encode().count(b"\r\n") == 2


def _port_forward(raw: bytes) -> None:
    asked = dial.port_forward_query(dial.parse_query(_text(raw)), MultiDict({"Upgrade": "websocket"}))
    assert all(0 < int(port) < 65536 for _, port in asked)


def _bearer(raw: bytes) -> None:
    token = websocket_bearer_token([_text(raw)])
    kept = dial.forwarded_headers("GET", [("Sec-WebSocket-Protocol", _text(raw))])
    protocols = [one for _, value in kept for one in websocket_protocols(value)]
    assert not any(one.startswith(BEARER_PROTOCOL) for one in protocols)
    assert token is None or token


def _watch(raw: bytes) -> None:
    splitter = collection.LineSplitter(limit=2**20)
    for line in [*splitter.feed(raw), *splitter.feed(b"\n")]:
        wire.decode_watch_event(line)


def _object(raw: bytes) -> None:
    found = decode_object(raw)
    _ = found.to_dict(), found.spec, found.status, found.labels, found.annotations, found.uid


def _error(raw: bytes) -> None:
    error = errors.error_from_response(500, raw, {"Retry-After": _text(raw[:40])})
    assert str(error)
    assert errors.is_retryable(error) in {True, False}


def _duration(raw: bytes) -> None:
    assert flags.parse_duration(_text(raw)) >= 0


def _certificate_user(raw: bytes) -> None:
    user = auth.user_from_certificate({"subject": ((("commonName", _text(raw)),),)})
    assert user is None or user.name


def _kubeconfig(raw: bytes) -> None:
    if b"exec" in raw or b"auth-provider" in raw:
        return  # runs programs and connects to servers: not for random input
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        with mock.patch.dict(os.environ):
            os.environ.pop("KUBECONFIG", None)
            assert asyncio.run(kubeconfig.load(file.name, in_cluster=False)).server


_PLUGIN = Plugin(
    command="plugin", source="kubeconfig: users[a].user", args=[], env={},
    api_version="client.authentication.k8s.io/v1", cluster=None, install_hint="",
)  # fmt: skip
_KUBECONFIG = b"""apiVersion: v1
kind: Config
current-context: c
clusters:
- name: k
  cluster: {server: "https://127.0.0.1:6443", tls-server-name: x, proxy-url: "http://127.0.0.1:1", insecure-skip-tls-verify: true}
contexts:
- name: c
  context: {cluster: k, user: u, namespace: n}
users:
- name: u
  user: {token: abc, username: a, password: b, as: other, as-groups: [g], as-user-extra: {k: [v]}}
"""
_PODS: dict[str, Any] = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": "x"}, "items": [
    {"metadata": {"name": "a", "namespace": "b", "uid": "c", "labels": {"d": "e"}}, "spec": {}, "status": {}}
]}  # fmt: skip
_STATUS = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "Conflict", "code": 409,
    "details": {"name": "x", "retryAfterSeconds": 3, "causes": [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]},
}  # fmt: skip
_EVENT = {"type": "ADDED", "object": {**_PODS["items"][0], "kind": "Pod", "apiVersion": "v1"}}
_SELECTOR = {
    "nodeSelector": {"gpu": "yes"},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "upperNodeSelectorTerms": [{"matchExpressions": [{"key": "clusterID", "operator": "Exists"}]}],
}  # fmt: skip
_ARGUMENTS = {
    "Pod": {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}, "ports": [{"hostPort": 80}]}],
        "affinity": _SELECTOR["affinity"], "tolerations": _SELECTOR["tolerations"]}},
    "NodeNames": ["vn-a", "real"],
    "NodeNameToMetaVictims": {"vn-a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}},
    "PodNamespace": "b", "PodName": "a", "PodUID": "c", "Node": "vn-a",
}  # fmt: skip
_CONFIGURATION = b"""apiVersion: virtual-node.io/v1alpha1
kind: VirtualNodeConfiguration
clusters:
  - name: tokyo
    kubeconfig: tokyo.yaml
    nodeName: vn-tokyo
    labels: {clusterID: tokyo}
    podSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
    namespaces: {prefix: t-, map: {a: b}, allowed: ["team-*"]}
    capacity: {reserve: {cpu: "10%", memory: 4Gi}}
"""
_SCHEDULER = b"""apiVersion: virtual-node.io/v1alpha1
kind: MultiSchedulerConfiguration
clusters: [{name: tokyo, kubeconfig: tokyo.yaml, podSelector: {matchLabels: {a: b}}}]
agents: [{name: fit, weight: 1}]
"""
_HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade"
_CREDENTIAL = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {
    "token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"}}  # fmt: skip
_BEARER = b"base64url.bearer.authorization.k8s.io.dG9rZW4, v5.channel.k8s.io"
_LOGS = b"follow=true&tailLines=10&sinceTime=2026-01-01T00:00:00Z&limitBytes=5&stream=All&timestamps=1"

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("quantity", _quantity, (b"100m", b"1.5Gi", b"1e3", b"-0.5E", b"+12e-9")),
        Target("label-selector-text", _selector, (b"zone=a,!b", b"zone in (a, b),c notin (d)", b"a!=b,c==d")),
        Target("label-selector", _label_selector, (_json({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "a", "operator": "NotIn", "values": ["x"]}]}),)),
        Target("cluster-selector", _cluster_selector, (_json(_SELECTOR),)),
        Target("timestamp", _timestamp, (b"2026-01-01T00:00:00Z", b"2026-01-01T00:00:00.123456+02:00")),
        Target("node-avoidance", _avoidance, (_json({"namespace": "a", "nodes": {"vn": "2026-01-01T00:00:00Z"}}),)),
        Target("duration", _duration, (b"1m30s", b"1.5h", b"100ms", b"0")),
        Target("response-head", _response_head, (_HEAD,)),
        Target("log-options", _log_options, (_LOGS, b"tail=all&previous"), (Refusal,)),
        Target("exec-options", _exec_options, (b"command=sh&command=-c&input=1&output=1&tty=1&error=1",), (Refusal,)),
        Target("port-forward-options", _port_forward, (b"port=80&port=443,8080",), (Refusal,)),
        Target("bearer-protocol", _bearer, (_BEARER,)),
        Target("list", lambda raw: list(wire.decode_list(raw)[0]), (_json(_PODS),)),
        Target("watch", _watch, (_json(_EVENT), _json({"type": "ERROR", "object": _STATUS})), (ValueError, errors.ApiError)),
        Target("object", _object, (_json(_EVENT["object"]),)),
        Target("error-response", _error, (_json(_STATUS), b"<html>502</html>", b"120", b"Wed, 21 Oct 2026 07:28:00 GMT")),
        Target("exec-credential", lambda raw: credentials._read(raw, _PLUGIN), (_json(_CREDENTIAL),), (errors.ConfigError,)),
        Target("certificate-user", _certificate_user, (b"kube-apiserver-kubelet-client",)),
        Target("configuration", lambda raw: file.parse(_text(raw)), (_CONFIGURATION,), (errors.ConfigError,), seconds=5),
        Target("scheduler-configuration", lambda raw: scheduler_config.parse(_text(raw)), (_SCHEDULER,), (errors.ConfigError,), seconds=5),
        Target("extender-candidates", protocol.candidates, (_json(_ARGUMENTS),)),
        Target("extender-preemption", protocol.preemption, (_json(_ARGUMENTS),), MALFORMED),
        Target("extender-binding", protocol.binding, (_json(_ARGUMENTS),)),
        Target("kubeconfig", _kubeconfig, (_KUBECONFIG,), (errors.ConfigError,), seconds=5),  # read once, at start
        *reviews.TARGETS,
        *lower_objects.TARGETS,
    )
}  # fmt: skip
