"""Checks that the webhook is registered and changes a labelled pod."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from cryptography import x509

from clusterset.model import names
from controller_runtime.apimachinery.readable import count, some
from virtual_node.commands.common.installation import LABEL_NAME
from virtual_node.commands.doctor.facts import PROBE_SELECTOR, WEBHOOK_NAME, DoctorFacts, waiting
from virtual_node.commands.doctor.links import Outcome, Rule, broken, ok, skipped
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.objects import Json, key, labels_of

_UNREACHED = re.compile(r"failed calling webhook \"([^\"]+)\"")
_DENIED = re.compile(r"admission webhook \"([^\"]+)\" denied the request")
_PODS_WEBHOOK = f"pods.{names.DOMAIN}"


def is_ours(configuration: Json) -> bool:
    """Report whether a MutatingWebhookConfiguration is our webhook's."""
    return (
        configuration["metadata"]["name"] == WEBHOOK_NAME
        or labels_of(configuration).get(LABEL_NAME) == WEBHOOK_NAME
        or any(one.get("name") == _PODS_WEBHOOK for one in configuration.get("webhooks") or ())
    )


def client_configs(configurations: Sequence[Json]) -> Iterator[tuple[str, Json]]:
    """Yield name and clientConfig of each webhook; the clientConfig says where the API server calls it."""
    for configuration in configurations:
        for webhook in configuration.get("webhooks") or ():
            yield webhook["name"], webhook.get("clientConfig") or {}


def registration(facts: DoctorFacts) -> Outcome:
    """Check that the webhook is registered, its CA is valid and its Service has ready endpoints."""
    ours = [one for one in facts.webhook.configurations if is_ours(one)]
    if not ours:
        waits = waiting(facts)
        labelled = [key(pod) for pod in waits if labels_of(pod).get(names.LABEL_VIRTUAL_POD) == "true"]
        if not labelled:
            return skipped(f"not installed; only pods labelled {names.LABEL_VIRTUAL_POD}=true need it")
        return broken(
            f"there is none, and {count(len(labelled), 'pod waits', 'pods wait')} with the label "
            f"{names.LABEL_VIRTUAL_POD}=true ({some(labelled)})",
            "install the webhook, or run virtual-node-webhook --register",
        )
    for name, client in client_configs(ours):
        if trouble := _bundle_trouble(client, facts.now):
            return broken(
                f"{name}: {trouble}",
                "is virtual-node-webhook running? Its leader writes the caBundle; if you use your own "
                "certificates, write it yourself",
            )
        if (service := client.get("service")) and not _ready_endpoints(facts, service):
            return broken(
                f"{name}: Service {service['namespace']}/{service['name']} has no ready endpoints",
                f"kubectl -n {service['namespace']} get pods,endpointslices; is virtual-node-webhook running?",
            )
    bundled = all(client.get("caBundle") for _, client in client_configs(ours))
    trust = "its CA is valid" if bundled else "trusted by the system's CAs"
    return ok(f"{some(one['metadata']['name'] for one in ours)}, {trust}{_address(facts, ours)}")


def mutation(facts: DoctorFacts) -> Outcome:
    """Check that the webhook changes a labelled pod; this proves what ``registration`` checks in parts."""
    probe = facts.webhook.dry_run
    where = f"a dry-run pod in namespace {facts.webhook.namespace}"
    if probe is None:
        return skipped("not tried: there is no webhook")
    if probe.ok:
        annotations = facts.webhook.dry_run_pod.get("metadata", {}).get("annotations") or {}
        if PROBE_SELECTOR in str(annotations.get(names.ANNOTATION_CLUSTER_SELECTOR, "")):
            return ok(f"{where} gets its {names.ANNOTATION_CLUSTER_SELECTOR}")
        return broken(
            f"{where} passes unchanged",
            "do objectSelector, namespaceSelector, rules and failurePolicy of the configuration match ours?",
        )
    if found := _UNREACHED.search(probe.text):
        kind = failure(probe.text)
        return broken(
            f"the API server cannot reach webhook {found[1]}: {kind.value or 'it fails'}: {_end(probe.text)}",
            _next_for(kind),
        )
    if found := _DENIED.search(probe.text):
        return broken(f"webhook {found[1]} denies {where}: {_end(probe.text)}", "look at that webhook's log")
    return skipped(f"{where} is refused, not by the webhook: {_end(probe.text)}", "try another --namespace")


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
    text = client.get("caBundle") or ""
    if not text:
        # Without a caBundle the API server trusts the system's CAs, which certify only public addresses.
        return "" if client.get("url") else "its caBundle is empty"
    try:
        certificates = x509.load_pem_x509_certificates(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        return f"its caBundle cannot be read: {error}"
    last = max(one.not_valid_after_utc for one in certificates)
    return f"its caBundle expired on {last:%Y-%m-%d}" if last <= now else ""


def _address(facts: DoctorFacts, ours: Sequence[Json]) -> str:
    details = []
    for _, client in client_configs(ours):
        if service := client.get("service"):
            ready = _ready_endpoints(facts, service)
            details.append(f"Service {service['namespace']}/{service['name']} has {ready} ready endpoints")
        elif url := client.get("url"):
            probe = facts.webhook.urls.get(url)
            # A failure from here proves nothing, because perhaps only the API server can reach the URL.
            answers = "answers" if probe and probe.code else "does not answer from here"
            details.append(f"{url} {answers}")
    return f"; {some(details)}" if details else ""


def _ready_endpoints(facts: DoctorFacts, service: Json) -> int:
    return facts.webhook.endpoints.get(f"{service['namespace']}/{service['name']}", 0)


def _end(text: str, limit: int = 300) -> str:
    """Return the end of an error message, where Go puts the cause."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"…{line[-limit:]}"


RULES = (
    Rule("webhook", "webhook registered", registration, needs=("upperApi",), reads=("webhook",)),
    Rule("mutation", "webhook changes labelled pods", mutation, needs=("webhook",)),
)
