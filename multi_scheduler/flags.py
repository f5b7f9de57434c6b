"""The multi-scheduler's command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller_runtime.command_line import Parser
from controller_runtime.errors import ConfigError
from controller_runtime.flags import add_boolean, add_log_flags, add_upper_flags, take_klog
from multi_scheduler import config as configuration
from multi_scheduler.config import Config

PROGRAM = "virtual-node-multi-scheduler"


@dataclass(frozen=True, slots=True)
class Options:
    """A parsed command line."""

    config: Config
    kubeconfig: str
    master: str
    address: str
    port: int
    tls_cert: str
    tls_key: str
    client_ca: str
    bind: bool
    """Serve ``/bind``."""
    log_level: str
    log_format: str
    klog_verbosity: int


def parse(argv: Sequence[str]) -> Options:
    """Turn a command line into options.

    Raises:
        ConfigError: a value or the configuration file is wrong.
        SystemExit: argparse's own, for unknown flags and ``--help``.
    """
    rest, verbosity = take_klog(list(argv))
    parser = Parser(
        PROGRAM,
        about="The scheduler extender: looks into the lower clusters before kube-scheduler binds a pod, so that a "
        "virtual node is chosen only where one lower node has the room.",
        examples=[("With its lower clusters in a file", "--kubeconfig upper.yaml --config clusters.yaml")],
    )
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="lower clusters, agents and weights: YAML, or tensile-kube's JSON",
    )
    add_upper_flags(parser)
    parser.add_argument("--address", default="", metavar="HOST", help="address to listen on (all)")
    parser.add_argument("--port", type=int, default=8888, help="port to listen on (8888)")
    parser.add_argument(
        "--tlscert", default="", metavar="FILE", help="serving certificate (none: plain HTTP)"
    )
    parser.add_argument("--tlskey", default="", metavar="FILE", help="its private key")
    parser.add_argument(
        "--client-ca", default="", metavar="FILE", help="CA of the scheduler's client certificate"
    )
    add_boolean(
        parser,
        "--bind",
        default=False,
        help_text="serve /bind, for a scheduler with bindVerb; takes create on pods/binding (false)",
    )
    add_log_flags(parser)
    flags = parser.parse_args(rest)
    if not flags.config:
        raise ConfigError("--config: required: the lower clusters to look into")
    if bool(flags.tlscert) != bool(flags.tlskey):
        raise ConfigError("--tlscert and --tlskey go together")
    return Options(
        config=configuration.load(flags.config),
        kubeconfig=flags.kubeconfig,
        master=flags.master,
        address=flags.address,
        port=flags.port,
        tls_cert=flags.tlscert,
        tls_key=flags.tlskey,
        client_ca=flags.client_ca,
        bind=flags.bind,
        log_level=flags.log_level,
        log_format=flags.log_format,
        klog_verbosity=verbosity,
    )
