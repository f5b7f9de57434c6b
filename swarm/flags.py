"""Parses the command line into options."""

from __future__ import annotations

from collections.abc import Sequence

from controller_runtime.leaderelection.flags import lease_times
from controller_runtime.process.flags import Klog, options, positive, take_klog
from swarm import compatibility
from swarm.command_line import PROGRAM, parser
from swarm.options import Options


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line.

    Raises:
        ConfigError: a value is wrong; the message names the flag.
        SystemExit: raised by argparse for ``--help`` and unknown flags.
    """
    rest, klog = take_klog(arguments)
    if compatibility.is_meant(rest):
        return _legacy(rest[1:], klog)
    given = parser().parse_args(rest)
    return options(
        Options,
        given,
        gone_after=positive("--gone-after", given.gone_after),
        qps=given.kube_api_qps,
        burst=given.kube_api_burst,
        lease=lease_times(given),
        klog=klog,
    )


def _legacy(arguments: Sequence[str], klog: Klog) -> Options:
    given = compatibility.parser(PROGRAM).parse_args(arguments)
    legacy = compatibility.read(given)
    return options(
        Options,
        given,
        legacy=legacy,
        lease_namespace=legacy.namespace,
        health_addr=f":{legacy.http_port}" if legacy.http_port else "",
        klog=klog,
    )
