"""Trust anchors and certificates of the upper cluster in projected volumes: names, content and steps. No IO.

A kubelet reads ClusterTrustBundles for ``clusterTrustBundle`` sources, and for ``podCertificate`` sources makes a key and a
PodCertificateRequest. Bundles, signers and identities are those of the upper cluster. So each such source of a lower pod
becomes items of one Secret, which has the pod's anchors, keys and chains and is deleted with the pod.

Signers that ``policy.podCertificates`` names are signers of the lower cluster; their sources stay as they are.

Source: kubelet ``pkg/kubelet/clustertrustbundle``, ``pkg/kubelet/podcertificate`` and ``pkg/volume/projected``.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from ssl import DER_cert_to_PEM_cert
from typing import Any, NamedTuple

from clusterset.model import names
from clusterset.model.policy.rules import matches
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.decoding import decode
from controller_runtime.apimachinery.matching import compile_selector
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods.downward_api import with_sources

LARGEST = 900 * 1024
"""Maximum bytes of a pod's anchors; a Secret has at most 1 MiB."""
OVERDUE = 600.0
"""Seconds after the time to renew a certificate from which its renewal is late."""
ABANDONED = 600.0
"""Seconds after which a request that cannot be read must have been deleted."""
SOONEST = 60.0
"""Minimum seconds from the issuance to the renewal of a certificate, because the clock here may be ahead of the signer's."""
FIRST_RETRY, LAST_RETRY = 10.0, 600.0
"""Shortest and longest pause in seconds after a request that the upper cluster refuses."""
_BLOCK = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+)-----[ \t\r]*\n(?:[^\n:]+:[^\n]*\n)*([A-Za-z0-9+/=\s]*?)-----END \1-----"
)


@dataclass(frozen=True, slots=True)
class TrustSource:
    """The anchors that a ``clusterTrustBundle`` source selects."""

    key: str
    """Key of the Secret."""
    volume: str
    name: str = ""
    """Name of the bundle; empty: by signer."""
    signer: str = ""
    selector: Mapping[str, Any] | None = None
    """Label selector, with ``signer``; None: selects nothing."""
    optional: bool = False

    def __str__(self) -> str:
        """Return what is selected, for messages."""
        if self.name:
            return f'clustertrustbundle "{self.name}"'
        chosen = "no label selector" if self.selector is None else f"labels {json.dumps(self.selector)[:200]}"
        return f'clustertrustbundle of signer "{self.signer}" with {chosen}'


@dataclass(frozen=True, slots=True)
class CertificateSource:
    """The certificate that a ``podCertificate`` source requests."""

    key: str
    """Begin of the keys of the Secret."""
    volume: str
    signer: str
    key_type: str
    seconds: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


class Sources(NamedTuple):
    """What a pod's projected volumes need of the upper cluster."""

    trust: list[TrustSource]
    certificates: list[CertificateSource]


def secret_name(name: str, uid: str) -> str:
    """Return the name of the lower Secret with an upper pod's anchors and certificates."""
    return f"{name[:200].rstrip('.')}-certificates-{uid[:8]}"


def secret_owner(name: str, labels: Mapping[str, str]) -> str:
    """Return the uid of the upper pod of such a Secret; empty: it is another Secret."""
    of = labels.get(names.LABEL_TOKEN_OF, "")
    return of if of and name.endswith(f"-certificates-{of[:8]}") else ""


def is_secret_of(name: str, labels: Mapping[str, str], of: str) -> bool:
    """Report whether an owned lower Secret has the anchors and certificates of that upper pod."""
    return secret_owner(name, labels) == of


def sources_of(pod: Mapping[str, Any], options: PodOptions) -> Sources:
    """Return the sources of an upper pod that the virtual node fills, each selection of anchors once."""
    trust: dict[str, TrustSource] = {}
    certificates: list[CertificateSource] = []
    for volume, source in _filled(pod["spec"].get("volumes") or (), _is_lower_signer(pod, options)):
        if (wanted := source.get("clusterTrustBundle")) is not None:
            found = _trust(volume, wanted)
            trust.setdefault(found.key, found)
        else:
            certificates.append(_certificate(volume, source["podCertificate"], len(certificates)))
    return Sources([*trust.values()], certificates)


def count(pod: Mapping[str, Any]) -> int:
    """Return the number of a pod's projected sources for certificates of any signer and for trust anchors."""
    return sum(
        source.get("podCertificate") is not None or source.get("clusterTrustBundle") is not None
        for volume in pod["spec"].get("volumes") or ()
        for source in (volume.get("projected") or {}).get("sources") or ()
    )


def with_upper_certificates(spec: dict[str, Any], pod: Mapping[str, Any], options: PodOptions) -> None:
    """Rewrite a lower pod spec, in place, so that its anchors and certificates come from the Secret."""
    is_lower = _is_lower_signer(pod, options)
    volumes = spec.get("volumes") or ()
    if next(_filled(volumes, is_lower), None) is None:
        return
    secret = secret_name(pod["metadata"]["name"], pod["metadata"]["uid"])
    number = 0

    def from_secret(source: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal number
        if not _is_filled(source, is_lower):
            return source
        if (trust := source.get("clusterTrustBundle")) is not None:
            files = {_trust("", trust).key: trust.get("path")}
            user = trust.get("user")
        else:
            wanted = source["podCertificate"]
            key, user = _certificate("", wanted, number).key, wanted.get("user")
            number += 1
            files = {
                f"{key}.bundle": wanted.get("credentialBundlePath"),
                f"{key}.key": wanted.get("keyPath"),
                f"{key}.chain": wanted.get("certificateChainPath"),
            }
        owner = {} if user is None else {"user": user}
        items = [{"key": key, "path": path, **owner} for key, path in files.items() if path]
        return {"secret": {"name": secret, "items": items}}

    spec["volumes"] = [with_sources(volume, from_secret) for volume in volumes]


def anchors(source: TrustSource, bundles: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the anchors of the bundles that a source selects, as a kubelet writes them; None: none is selected.

    Each certificate is in it once. A kubelet shuffles them, so that no program depends on their order. The order here depends
    only on the certificates, so that all processes write the same.

    Raises:
        ValueError: the label selector is malformed.
    """
    found = list(filter(_selects(source), bundles))
    if not found:
        return "" if source.optional else None
    blocks = {block for bundle in found for block in _bundle_blocks(bundle["spec"].get("trustBundle") or "")}
    return "".join(map(DER_cert_to_PEM_cert, sorted(blocks, key=lambda der: hashlib.sha256(der).digest())))


def chain(text: str) -> str:
    """Return a chain of certificates without headers and without text between them, in its order."""
    return "".join(map(DER_cert_to_PEM_cert, _pem_blocks(text)))


@dataclass(frozen=True, slots=True)
class Credential:
    """A key with its certificate."""

    key: str = field(repr=False)
    """PKCS#8, PEM."""
    chain: str
    renew_at: float
    """Unix time."""
    expires: float


@dataclass(frozen=True, slots=True)
class Request:
    """A PodCertificateRequest that is not answered yet."""

    name: str
    key: str = field(repr=False)
    made_at: float


@dataclass(frozen=True, slots=True)
class Issue:
    """What is known about the certificate of one source."""

    credential: Credential | None = None
    request: Request | None = None
    refused: str = ""
    """Why the signer does not issue it; empty: it has not refused. As in a kubelet, it is not asked again for this pod."""
    warned: frozenset[str] = frozenset()
    """Reasons of the events about this credential."""
    failed: str = ""
    """Why the upper cluster refused the last request; empty: it did not."""
    retry_at: float = 0.0
    """Unix time of the next request after refused ones."""
    retry_after: float = FIRST_RETRY
    """Seconds from the next refused request to the one after it."""


class Step(NamedTuple):
    """What to do next about the certificate of a source."""

    issue: Issue
    must_request: bool = False
    event: tuple[str, str] = ("", "")
    """Reason and message of a warning; empty: there is none."""


def decide(issue: Issue, request: Mapping[str, Any] | None, now: float, *, jitter: float = 0.0) -> Step:
    """Return the next step for a certificate.

    Args:
        issue: what is known.
        request: the PodCertificateRequest ``issue.request`` in the cache; None: it is not there.
        now: Unix time.
        jitter: seconds by which its renewal is delayed, so that not all pods renew at once.
    """
    if issue.refused:
        return Step(issue)
    if issue.request is None:
        is_due = issue.credential is None or now >= issue.credential.renew_at
        return _warned(issue, now, must_request=is_due and now >= issue.retry_at)
    if request is None:
        if now < issue.request.made_at + ABANDONED:
            return _warned(issue, now)
        return Step(replace(issue, request=None), must_request=True)
    status = request.get("status") or {}
    key = f"{request['metadata']['namespace']}/{request['metadata']['name']}"
    for condition in status.get("conditions") or ():
        cause = f"reason={json.dumps(condition.get('reason', ''))}, message={json.dumps(condition.get('message', ''))}"
        match condition.get("type"):
            case "Denied" | "Failed" as kind:
                what = (
                    f"PodCertificateRequest {key} {'was denied' if kind == 'Denied' else 'failed'}, {cause}"
                )
                return Step(replace(issue, request=None, refused=what), event=(kind, what))
            case "Issued":
                made = Credential(
                    issue.request.key,
                    chain(status.get("certificateChain") or ""),
                    max(_seconds(status["beginRefreshAt"]) + jitter, now + SOONEST),
                    _seconds(status["notAfter"]),
                )
                return Step(Issue(made))
    return _warned(issue, now)


def failed(issue: Issue, why: str, now: float, *, longest: float = LAST_RETRY) -> Issue:
    """Return what is known after a request that the upper cluster refused at a Unix time.

    The pause until the next request doubles each time, up to ``longest`` seconds.
    """
    pause = min(issue.retry_after, longest)
    return replace(issue, failed=why, retry_at=now + pause, retry_after=2 * pause)


def longest_jitter(status: Mapping[str, Any], most: float) -> float:
    """Return the seconds by which the renewal of an issued certificate may be delayed, given the status of its request."""
    begin, end = status.get("beginRefreshAt"), status.get("notAfter")
    return min(most, max(0.0, _seconds(end) - _seconds(begin)) / 2) if begin and end else 0.0


def pause(issue: Issue, now: float) -> float:
    """Return the seconds until the next step that no change of an object causes; 0: there is none."""
    times: list[float] = []
    if issue.refused:
        return 0.0
    held = issue.credential
    if issue.request is not None:
        # After this time, only a request that is still in the cache is waited for, and its next change follows.
        times += [at] if now < (at := issue.request.made_at + ABANDONED) else []
    elif held is not None or issue.failed:
        times.append(max(issue.retry_at, 0.0 if held is None else held.renew_at))
    if held is not None:
        times += [at for reason, at, _ in _deadlines(held) if reason not in issue.warned]
    return max(1.0, min(times) - now) if times else 0.0


def body(
    upper: Mapping[str, Any],
    data: Mapping[str, str],
    credentials: Mapping[str, Credential],
    *,
    labels: Mapping[str, str],
    namespace: str,
) -> dict[str, Any]:
    """Return the lower Secret with anchors and credentials.

    Args:
        upper: metadata of the upper pod.
        data: anchors by key.
        credentials: by ``CertificateSource.key``.
        labels: ownership labels.
        namespace: the lower namespace.
    """
    entries = dict(data)
    for key, held in credentials.items():
        entries |= {
            f"{key}.bundle": held.key + held.chain,
            f"{key}.key": held.key,
            f"{key}.chain": held.chain,
        }
    times = {key: [int(held.renew_at), int(held.expires)] for key, held in credentials.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": secret_name(upper["name"], upper["uid"]),
            "namespace": namespace,
            "labels": {**labels, names.LABEL_TOKEN_OF: upper["uid"]},
            "annotations": {names.ANNOTATION_CERTIFICATE_TIMES: json.dumps(times, sort_keys=True)},
        },
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()},
    }


def held_credentials(secret: Mapping[str, Any]) -> dict[str, Credential]:
    """Return the credentials in a Secret that an earlier process wrote; those that cannot be read are left out."""
    found: dict[str, Credential] = {}
    data = secret.get("data") or {}
    try:
        times = decode(secret["metadata"]["annotations"][names.ANNOTATION_CERTIFICATE_TIMES])
        for key, (renew_at, expires) in times.items():
            key_pem, certificates = (
                base64.b64decode(data[f"{key}.{part}"]).decode() for part in ("key", "chain")
            )
            # Users of the lower cluster can write anything, such as a time of 1e999.
            found[key] = Credential(key_pem, certificates, float(int(renew_at)), float(int(expires)))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return {}
    return found


def is_written(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Report whether a Secret has the wanted data, labels and annotations; it may have more."""
    metadata, other = there["metadata"], wanted["metadata"]
    return all(
        dict(needed.items() - (present or {}).items()) == {}
        for present, needed in (
            (there.get("data"), wanted["data"]),
            (metadata.get("labels"), other["labels"]),
            (metadata.get("annotations"), other["annotations"]),
        )
    )


def request_body(
    pod: Mapping[str, Any],
    source: CertificateSource,
    csr: bytes,
    *,
    api_version: str,
    account: str,
    account_uid: str,
    node: str,
    node_uid: str,
) -> dict[str, Any]:
    """Return the PodCertificateRequest of an upper pod.

    Args:
        pod: its metadata.
        source: what it requests.
        csr: an empty PKCS#10 request (DER), which proves that the sender has the key.
        api_version: a version that the upper cluster serves.
        account: name of the pod's ServiceAccount.
        account_uid: its uid.
        node: the virtual node.
        node_uid: uid of its Node.
    """
    spec: dict[str, Any] = {
        "signerName": source.signer,
        "podName": pod["name"],
        "podUID": pod["uid"],
        "serviceAccountName": account,
        "serviceAccountUID": account_uid,
        "nodeName": node,
        "nodeUID": node_uid,
        "stubPKCS10Request": base64.b64encode(csr).decode(),
    }
    if source.seconds is not None:
        spec["maxExpirationSeconds"] = source.seconds
    if source.annotations:
        spec["unverifiedUserAnnotations"] = dict(source.annotations)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    return {
        "apiVersion": api_version,
        "kind": "PodCertificateRequest",
        "metadata": {"generateName": "req-", "namespace": pod["namespace"], "ownerReferences": [owner]},
        "spec": spec,
    }


def _warned(issue: Issue, now: float, *, must_request: bool = False) -> Step:
    held = issue.credential
    if held is None:
        return Step(issue, must_request)
    for reason, at, message in _deadlines(held):
        if now > at and reason not in issue.warned:
            return Step(replace(issue, warned=issue.warned | {reason}), must_request, (reason, message))
    return Step(issue, must_request)


def _deadlines(held: Credential) -> Iterator[tuple[str, float, str]]:
    """Yield reason, Unix time and message of each warning about a credential, the gravest first."""
    yield "CertificateExpired", held.expires, "PodCertificate expired"
    yield "CertificateOverdueForRefresh", held.renew_at + OVERDUE, "PodCertificate refresh overdue"


def _seconds(text: str) -> float:
    return timestamps.parse(text).timestamp()


def _is_lower_signer(pod: Mapping[str, Any], options: PodOptions) -> Callable[[str], bool]:
    rules = options.policy.of(pod["metadata"]["namespace"])
    return lambda signer: matches(signer, rules.values["pod_certificates"])


def _is_filled(source: Mapping[str, Any], is_lower: Callable[[str], bool]) -> bool:
    if source.get("clusterTrustBundle") is not None:
        return True
    wanted = source.get("podCertificate")
    return wanted is not None and not is_lower(wanted.get("signerName") or "")


def _filled(
    volumes: Iterable[Mapping[str, Any]], is_lower: Callable[[str], bool]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the sources that the virtual node fills, each with the name of its volume."""
    for volume in volumes:
        for source in (volume.get("projected") or {}).get("sources") or ():
            if _is_filled(source, is_lower):
                yield volume["name"], source


def _trust(volume: str, source: Mapping[str, Any]) -> TrustSource:
    name, signer, selector = (
        source.get("name") or "",
        source.get("signerName") or "",
        source.get("labelSelector"),
    )
    optional = bool(source.get("optional"))
    code = json.dumps([name, signer, selector, optional], sort_keys=True)
    key = f"trust-{hashlib.sha256(code.encode()).hexdigest()[:24]}"
    return TrustSource(key, volume, name, signer, selector, optional)


def _certificate(volume: str, source: Mapping[str, Any], number: int) -> CertificateSource:
    seconds = source.get("maxExpirationSeconds")
    return CertificateSource(
        f"certificate-{number}",
        volume,
        source.get("signerName") or "",
        source.get("keyType") or "",
        None if seconds is None else int(seconds),
        source.get("userAnnotations") or {},
    )


def _selects(source: TrustSource) -> Callable[[Mapping[str, Any]], bool]:
    if source.name:
        return lambda bundle: bundle["metadata"]["name"] == source.name
    if source.selector is None:
        return lambda _bundle: False
    selected = compile_selector(source.selector)
    return lambda bundle: (
        bundle["spec"].get("signerName") == source.signer and selected(bundle["metadata"].get("labels") or {})
    )


@functools.lru_cache(maxsize=8)  # many pods select the same bundles; an object has at most 1.5 MiB
def _bundle_blocks(text: str) -> tuple[bytes, ...]:
    return _pem_blocks(text)


def _pem_blocks(text: str) -> tuple[bytes, ...]:
    found = []
    for block in _BLOCK.finditer(text.replace("\r\n", "\n")):
        try:
            found.append(base64.b64decode("".join(block[2].split()), validate=True))
        except binascii.Error:
            continue
    return tuple(found)
