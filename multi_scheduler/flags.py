"""The multi-scheduler's command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller_runtime.errors import ConfigError
from controller_runtime.process import flags
from controller_runtime.process.argparser import Parser
from multi_scheduler.extender.server import MAX_BODY_BYTES
from multi_scheduler.process.options import ProcessOptions, add_config_flags, process_options

PROGRAM = "virtual-node-multi-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProcessOptions):
    """A parsed command line. Without ``health_addr``, the extender's port serves health and metrics."""

    address: str
    port: int
    tlscert: str
    tlskey: str
    client_ca: str
    client_names: tuple[str, ...]
    """Common names of client certificates that are accepted; empty: any name."""
    namespace: str
    """Namespace of the Secrets and of the Lease."""
    active_lease: str
    """Lease that the process must hold to answer; empty: no other process may run."""
    secret_name: str
    """Secret for certificates that the process creates itself; empty: it creates none."""
    client_secret_name: str
    """Secret with the scheduler's client certificate."""
    hosts: tuple[str, ...]
    bind: bool
    """Serve ``/bind``."""
    safe_scheduler_routes: bool
    """Serve the paths of kube-safe-scheduler as well."""
    environment: Mapping[str, str]
    max_body_bytes: int


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Options:
    """Parse a command line and the configuration file.

    Raises:
        ConfigError: a value or the configuration file is wrong.
        SystemExit: raised by argparse for unknown flags and ``--help``.
    """
    environment = os.environ if environment is None else environment
    rest, klog = flags.take_klog(argv)
    given = parser(environment).parse_args(rest)
    shared = process_options(given, klog)
    flags.check_serving(given)
    if given.client_ca and not given.tlscert:
        raise ConfigError("--client-ca: needs --tlscert and --tlskey")
    if given.secret_name and given.tlscert:
        raise ConfigError(
            "--secret-name (own certificates) and --tlscert (given certificates) exclude each other: use one of them"
        )
    if given.client_names and not (given.client_ca or given.secret_name):
        raise ConfigError("--client-names: needs --client-ca or --secret-name")
    if given.max_body_bytes < 1:
        raise ConfigError(f"--max-body-bytes: {given.max_body_bytes} is less than 1")
    hosts = [*flags.service_hosts(given.service_name, given.namespace), *given.hosts]
    return flags.options(
        Options,
        given,
        **shared,
        client_names=tuple(given.client_names),
        client_secret_name=given.client_secret_name or f"{given.secret_name}-client",
        hosts=tuple(dict.fromkeys(hosts)) or ("localhost",),
        environment=environment,
    )


def parser(environment: Mapping[str, str]) -> Parser:
    """Return the program's parser; ``POD_NAMESPACE`` in the environment sets the default of ``--namespace``."""
    whole = Parser(
        PROGRAM,
        about="The scheduler extender: checks the lower clusters before kube-scheduler binds a pod, so that a "
        "virtual node is chosen only if one of its lower nodes has room.",
        examples=[("Read the lower clusters from a file", "--kubeconfig upper.yaml --config clusters.yaml")],
    )
    add_config_flags(whole)
    flags.add_flag(whole, "--address HOST", "address to listen on (all)")
    whole.add_argument("--port", type=int, default=8888, help="port to listen on (8888)")
    flags.add_flag(whole, "--tlscert FILE", "serving certificate (none: plain HTTP)")
    flags.add_flag(whole, "--tlskey FILE", "its private key")
    flags.add_flag(
        whole,
        "--client-ca FILE",
        "CA of the scheduler's client certificate; calls without one are refused (401)",
    )
    flags.add_flag(
        whole,
        "--client-names LIST",
        "common names that a client certificate may have (any, so the client CA must sign nothing else)",
        type=flags.comma_list,
        default=[],
    )
    own = whole.add_argument_group("own certificates (without --tlscert)")
    flags.add_flag(
        own,
        "--secret-name NAME",
        "Secret for certificates of both sides, which are created; calls without one are refused (none)",
    )
    flags.add_flag(
        own,
        "--client-secret-name NAME",
        "Secret for kube-scheduler: tls.crt, tls.key, ca.crt (--secret-name with -client)",
    )
    flags.add_flag(own, "--service-name NAME", "Service by which the scheduler calls the extender")
    flags.add_flag(
        own,
        "--hosts LIST",
        "further names and addresses by which the scheduler calls the extender",
        type=flags.comma_list,
        default=[],
    )
    flags.add_boolean(
        whole,
        "--bind",
        default=False,
        help_text="serve /bind, for a scheduler with bindVerb; needs the right create on pods/binding (false)",
    )
    flags.add_flag(
        whole,
        "--namespace NS",
        "namespace of the Secrets, the Service and the Lease ($POD_NAMESPACE, kube-system)",
        default=environment.get("POD_NAMESPACE", "") or "kube-system",
    )
    flags.add_flag(
        whole,
        "--active-lease NAME",
        "Lease in --namespace: a process answers only while it holds it, so that two processes never promise the same room "
        "(none: only one process may run)",
    )
    flags.add_boolean(
        whole,
        "--safe-scheduler-routes",
        default=False,
        help_text="serve the paths of kube-safe-scheduler under /scheduler, with its environment variables, and a path "
        "for each agent (false)",
    )
    flags.add_flag(
        whole,
        "--max-body-bytes N",
        f"largest call in bytes; a scheduler without nodeCacheCapable needs more ({MAX_BODY_BYTES})",
        type=int,
        default=MAX_BODY_BYTES,
    )
    flags.add_health_address(
        whole, help_text="serve /healthz, /readyz and /metrics on this address, without TLS (on --port)"
    )
    flags.add_log_flags(whole)
    return whole
