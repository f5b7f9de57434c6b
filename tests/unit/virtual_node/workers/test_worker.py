"""The command line of a worker."""

from __future__ import annotations

from virtual_node.config.program import WORKER
from virtual_node.sharding import host_of, lease_of
from virtual_node.workers import Worker


def test_arguments_are_parsed_as_they_were_written():
    worker = Worker(number=2, member="host.2-0a1b2c3d", listener=-1)
    command, *arguments = worker.arguments(["--config=c.yaml", "--", "x"])
    assert (command, Worker.parse(arguments)) == (WORKER, (worker, ["--config=c.yaml", "--", "x"]))


def test_the_lease_shows_host_and_number():
    assert host_of("host.2-0a1b2c3d") == "host.2"
    assert lease_of("vn", "host.2-0a1b2c3d") == "vn-replica-host.2-0a1b2c3d"
