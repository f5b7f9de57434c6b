"""Rules about our webhook: its registration, and whether it changes a labelled pod."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from clusterset.model import names
from controller_runtime.apimachinery.readable import count, some
from virtual_node.examine.codes import Code
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.facts import PROBE_SELECTOR, WAITING, WEBHOOK, Webhook
from virtual_node.examine.finding import Findings
from virtual_node.examine.objects import Json, is_labelled, key, labels_of
from virtual_node.examine.rules.scheduling import waiting
from virtual_node.examine.snapshot import Snapshot

NAME = "virtual-node-webhook"
_LABEL_NAME = "app.kubernetes.io/name"
_PODS_WEBHOOK = f"pods.{names.DOMAIN}"
_KIND = "MutatingWebhookConfiguration"
_UNREACHED = re.compile(r"failed calling webhook \"([^\"]+)\"")
_DENIED = re.compile(r"admission webhook \"([^\"]+)\" denied the request")


@rule(Code.WEBHOOK_UNUSABLE, needs=[WEBHOOK], uses=[WAITING], level=Level.PATH)
def registration(snapshot: Snapshot) -> Findings:
    """Yield that there is no webhook although pods need it, that its CA is invalid, or that nothing serves it."""
    webhook = snapshot.upper[WEBHOOK]
    if not webhook.configurations:
        pods = waiting(snapshot)
        labelled = [key(pod) for pod in pods if is_labelled(pod)]
        if labelled:
            cause = (
                f"there is none, and {count(len(labelled), 'pod waits', 'pods wait')} with the label "
                f"{names.LABEL_VIRTUAL_POD}=true ({some(labelled)})"
            )
            step = "install the webhook, or run virtual-node-webhook --register"
            yield snapshot.upper.sentence(Code.WEBHOOK_UNUSABLE, _KIND, NAME, cause, step)
    for name, client in client_configs(webhook.configurations):
        if trouble := _bundle_trouble(client, snapshot.now):
            step = (
                "is virtual-node-webhook running? Its leader writes the caBundle; if you use your own "
                "certificates, write it yourself"
            )
            yield snapshot.upper.sentence(Code.WEBHOOK_UNUSABLE, _KIND, name, f"{name}: {trouble}", step)
        elif (service := client.get("service")) and not ready_endpoints(webhook, service):
            cause = f"{name}: Service {service['namespace']}/{service['name']} has no ready endpoints"
            step = (
                f"kubectl -n {service['namespace']} get pods,endpointslices; is virtual-node-webhook running?"
            )
            yield snapshot.upper.sentence(Code.WEBHOOK_UNUSABLE, _KIND, name, cause, step)


@rule(Code.WEBHOOK_INEFFECTIVE, needs=[WEBHOOK], level=Level.PATH)
def mutation(snapshot: Snapshot) -> Findings:
    """Yield that a labelled pod is not changed; this proves what ``registration`` checks in parts."""
    webhook = snapshot.upper[WEBHOOK]
    if webhook.dry_run is None:
        return
    where, text = tested(webhook), webhook.dry_run.text
    if webhook.dry_run.ok:
        annotations = webhook.dry_run_pod.get("metadata", {}).get("annotations") or {}
        if PROBE_SELECTOR not in str(annotations.get(names.ANNOTATION_CLUSTER_SELECTOR, "")):
            step = "do objectSelector, namespaceSelector, rules and failurePolicy of the configuration match ours?"
            yield snapshot.upper.sentence(
                Code.WEBHOOK_INEFFECTIVE, _KIND, NAME, f"{where} passes unchanged", step
            )
    elif found := _UNREACHED.search(text):
        kind = failure(text)
        cause = f"the API server cannot reach webhook {found[1]}: {kind.value or 'it fails'}: {end(text)}"
        yield snapshot.upper.sentence(Code.WEBHOOK_INEFFECTIVE, _KIND, found[1], cause, _next_for(kind))
    elif found := _DENIED.search(text):
        cause = f"webhook {found[1]} denies {where}: {end(text)}"
        yield snapshot.upper.sentence(
            Code.WEBHOOK_INEFFECTIVE, _KIND, found[1], cause, "look at that webhook's log"
        )


def is_ours(configuration: Json) -> bool:
    """Report whether a MutatingWebhookConfiguration is our webhook's."""
    return (
        configuration["metadata"]["name"] == NAME
        or labels_of(configuration).get(_LABEL_NAME) == NAME
        or any(webhook.get("name") == _PODS_WEBHOOK for webhook in configuration.get("webhooks") or ())
    )


def client_configs(configurations: Sequence[Json]) -> Iterator[tuple[str, Json]]:
    """Yield name and clientConfig of each webhook; the clientConfig says where the API server calls it."""
    for configuration in configurations:
        for webhook in configuration.get("webhooks") or ():
            yield webhook["name"], webhook.get("clientConfig") or {}


def tested(webhook: Webhook) -> str:
    """Return which pod was created."""
    return f"a dry-run pod in namespace {webhook.namespace}"


def ready_endpoints(webhook: Webhook, service: Json) -> int:
    """Return the number of ready endpoints of a webhook's Service."""
    return webhook.endpoints.get(f"{service['namespace']}/{service['name']}", 0)


def end(text: str, limit: int = 300) -> str:
    """Return the end of an error message, where Go puts the cause."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"…{line[-limit:]}"


def _next_for(kind: Failure) -> str:
    match kind:
        case Failure.UNTRUSTED:
            return "the caBundle is not that of the webhook's certificate, or the name is not in it: restart the webhook"
        case Failure.NO_ENDPOINTS | Failure.REFUSED:
            return "is virtual-node-webhook running, and does its Service (or --url) lead to its port?"
        case Failure.SILENT | Failure.NO_NAME:
            return "let the API server reach it: routes, firewalls, network policies, the name of --url"
        case _:
            return "look at virtual-node-webhook's log"


def _bundle_trouble(client: Json, now: datetime) -> str:
    """Return the defect of a caBundle; empty: there is none."""
    from cryptography import x509  # noqa: PLC0415 - tools that judge no certificate do not load it

    text = client.get("caBundle") or ""
    if not text:
        # Without a caBundle the API server trusts the system's CAs, which certify only public addresses.
        return "" if client.get("url") else "its caBundle is empty"
    try:
        certificates = x509.load_pem_x509_certificates(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        return f"its caBundle cannot be read: {error}"
    last = max(expiry.not_valid_after_utc for expiry in certificates)
    return f"its caBundle expired on {last:%Y-%m-%d}" if last <= now else ""
