"""The flags of leader election, named as in Kubernetes components."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TypedDict

from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.elector import JITTER
from controller_runtime.process.flags import LogOptions, add_boolean, add_duration


class LeaseTimes(TypedDict, total=False):
    """Arguments of ``LeaderElector``, in seconds. A missing key means the default."""

    lease_duration: float
    renew_deadline: float
    retry_period: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions(LogOptions):
    """Options of a controller of which one of several replicas works."""

    kubeconfig: str = ""
    master: str = ""
    qps: float = 50.0
    burst: int = 100
    leader_elect: bool = True
    lease: LeaseTimes = field(default_factory=LeaseTimes)
    health_addr: str = ""


def add_election_flags(group: argparse._ActionsContainer) -> None:
    """Add ``--leader-elect`` and the flags of ``lease_times``."""
    add_boolean(group, "--leader-elect", default=True, help_text="only one of several replicas works (true)")
    for name, default in (("lease-duration", 15.0), ("renew-deadline", 10.0), ("retry-period", 2.0)):
        add_duration(group, f"--leader-elect-{name}", default, f"({default:g}s)")


def lease_times(given: argparse.Namespace) -> LeaseTimes:
    """Return the times that the flags set.

    Raises:
        ConfigError: the times contradict each other; the message names the flags.
    """
    duration, deadline = given.leader_elect_lease_duration, given.leader_elect_renew_deadline
    period = given.leader_elect_retry_period
    if not duration > deadline > period * JITTER > 0:
        raise ConfigError(
            "--leader-elect-lease-duration must be more than --leader-elect-renew-deadline, "
            f"and that more than {JITTER} × --leader-elect-retry-period"
        )
    return LeaseTimes(lease_duration=duration, renew_deadline=deadline, retry_period=period)
