"""The command line: the flags of tensile-kube under the same names, and additional flags."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller_runtime.errors import ConfigError
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import (
    LogOptions,
    add_boolean,
    add_duration,
    add_flag,
    add_health_address,
    add_log_flags,
    add_upper_flags,
    check_serving,
    comma_list,
    options,
    service_hosts,
    take_klog,
)
from webhook import manifests
from webhook.mutation.mutate import Surroundings

PROGRAM = "virtual-node-webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(LogOptions):
    """Parsed command line."""

    address: str
    port: int
    kubeconfig: str
    master: str
    incluster: bool
    surroundings: Surroundings
    """Settings for the mutation of pods; its fields about a pod are empty."""
    tlscert: str
    """Serving certificate; empty: the webhook creates its certificates and stores them in a Secret."""
    tlskey: str
    client_ca: str
    namespace: str
    """Namespace of the Secret, the Lease and the Service."""
    secret_name: str
    hosts: tuple[str, ...]
    configuration_name: str
    register: bool
    url: str
    service_name: str
    """Service of the webhook; empty: there is none."""
    freeze_namespace: str
    freeze_period: float
    shutdown_delay_duration: float
    """Seconds for which the server keeps listening after the signal to stop."""
    leader_elect: bool
    health_addr: str


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Options:
    """Return the options of a command line.

    Raises:
        ConfigError: a value is invalid or contradicts another value; the message names the flags.
        SystemExit: ``--help`` or an unknown flag.
    """
    environment = os.environ if environment is None else environment
    rest, klog = take_klog(argv)
    flags = parser(environment).parse_args(rest)
    check_serving(flags)
    if flags.register and not flags.url and not flags.service_name:
        raise ConfigError("--register: give the webhook's address with --url or --service-name")
    if flags.url and not flags.url.startswith("https://"):
        raise ConfigError(f"--url: {flags.url!r} must begin with https://")
    hosts = [*flags.hosts, *service_hosts(flags.service_name, flags.namespace)]
    if flags.url:
        host = flags.url.removeprefix("https://").partition("/")[0]
        hosts.append(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
    return options(
        Options,
        flags,
        surroundings=options(Surroundings, flags, ignore_keys=tuple(comma_list(flags.ignore_selector_keys))),
        client_ca=flags.CA,
        hosts=tuple(dict.fromkeys(hosts)) or ("localhost",),
        klog=klog,
    )


def parser(environment: Mapping[str, str]) -> Parser:
    """Return the program's parser; some defaults are read from ``environment``."""
    whole = Parser(
        PROGRAM,
        about="The mutating webhook: moves node selectors of pods labelled virtual-pod=true into an annotation, which "
        "the lower cluster's scheduler applies.",
        examples=[
            (
                "Outside the upper cluster, called by its API server at a URL",
                "--kubeconfig upper.yaml --register --url https://10.0.0.1:8080",
            ),
            ("In the upper cluster, behind a Service", f"--incluster --register --service-name {PROGRAM}"),
        ],
    )
    server = whole.add_argument_group("server")
    add_flag(server, "--address HOST", "address to listen on (all, IPv4 and IPv6)")
    server.add_argument("--port", type=int, default=8080, help="port to listen on (8080)")
    add_flag(server, "--tlscert FILE", "serving certificate; reloaded when it changes")
    add_flag(server, "--tlskey FILE", "its private key; reloaded when it changes")
    add_flag(server, "--CA FILE", "CA of client certificates; with it they are verified")
    add_health_address(server)
    add_duration(
        server,
        "--shutdown-delay-duration",
        0.0,
        "time to keep serving after the signal to stop, while the API server still calls it (0)",
    )
    upper = whole.add_argument_group("upper cluster")
    add_upper_flags(upper)
    add_boolean(upper, "--incluster", default=False, help_text="use the pod's own ServiceAccount")
    pods = whole.add_argument_group("pods")
    add_flag(
        pods,
        "--ignore-selector-keys LIST",
        "label keys that stay in the upper spec (clusterID)",
        default="clusterID",
    )
    add_duration(pods, "--freeze-period", 300.0, "how long an owner's pods avoid a node that was full (5m)")
    add_flag(
        pods, "--freeze-namespace NS", "namespace of the descheduler's ConfigMaps", default="kube-system"
    )
    add_flag(
        pods,
        "--scheduler-name NAME",
        "scheduler for pods that name none: one that calls the multi-scheduler (unchanged)",
    )
    add_boolean(
        pods,
        "--require-virtual-node",
        default=True,
        help_text="run pods with moved selectors on virtual nodes only, not on real upper nodes (true)",
    )
    add_boolean(
        pods,
        "--move-resource-claims",
        default=False,
        help_text="move resourceClaims into an annotation, for lower clusters with resourceClaims.enabled. Such pods run "
        "on virtual nodes only (false)",
    )
    own = whole.add_argument_group("own certificates and registration (without --tlscert)")
    add_flag(
        own,
        "--namespace NS",
        "namespace of the Secret, the Lease and the Service ($POD_NAMESPACE, kube-system)",
        default=environment.get("POD_NAMESPACE", "") or "kube-system",
    )
    add_flag(own, "--secret-name NAME", f"name of the Secret ({PROGRAM}-tls)", default=f"{PROGRAM}-tls")
    add_flag(
        own,
        "--hosts LIST",
        "additional host names and addresses in the certificate",
        type=comma_list,
        default=[],
    )
    add_flag(
        own,
        "--configuration-name NAME",
        f"name of the webhook configurations ({manifests.NAME})",
        default=manifests.NAME,
    )
    add_boolean(
        own,
        "--register",
        default=False,
        help_text="create the webhook configurations; the chart creates them itself (false)",
    )
    add_flag(own, "--url URL", "URL at which the API server calls a webhook outside the cluster")
    add_flag(own, "--service-name NAME", "Service of the webhook")
    add_boolean(
        own, "--leader-elect", default=True, help_text="only one replica writes webhook configurations (true)"
    )
    add_log_flags(whole)
    return whole
