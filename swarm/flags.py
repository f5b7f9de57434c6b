"""Parses the command line into options."""

from __future__ import annotations

from collections.abc import Sequence

from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.elector import JITTER
from controller_runtime.process.flags import Klog, positive, take_klog
from swarm import compatibility
from swarm.command_line import LEADER_FLAGS, PROGRAM, parser
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
    duration_, deadline, period = (getattr(given, name) for name in LEADER_FLAGS)
    if not duration_ > deadline > period * JITTER > 0:
        raise ConfigError(
            "--leader-elect-lease-duration must be more than --leader-elect-renew-deadline, "
            f"and that more than {JITTER} × --leader-elect-retry-period"
        )
    return Options(
        kubeconfig=given.kubeconfig,
        server=given.master,
        namespace=given.namespace,
        lease_namespace=given.lease_namespace,
        gone_after=positive("--gone-after", given.gone_after),
        qps=given.kube_api_qps,
        burst=given.kube_api_burst,
        leader_elect=given.leader_elect,
        lease={"lease_duration": duration_, "renew_deadline": deadline, "retry_period": period},
        health_address=given.health_addr,
        log_level=given.log_level,
        log_format=given.log_format,
        klog=klog,
    )


def _legacy(arguments: Sequence[str], klog: Klog) -> Options:
    given = compatibility.parser(PROGRAM).parse_args(arguments)
    legacy = compatibility.read(given)
    return Options(
        legacy=legacy,
        kubeconfig=given.kubeconfig,
        server=given.master,
        namespace=legacy.namespace,
        lease_namespace=legacy.namespace,
        leader_elect=given.leader_elect,
        lease={"lease_duration": 15.0, "renew_deadline": 10.0, "retry_period": 2.0},
        health_address=f":{legacy.http_port}" if legacy.http_port else "",
        log_level=given.log_level,
        log_format=given.log_format,
        klog=klog,
    )
