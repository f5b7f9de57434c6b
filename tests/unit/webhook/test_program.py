"""The flags of the webhook."""

from __future__ import annotations

import pytest

from controller_runtime.errors import ConfigError
from webhook.program import PROGRAM


def test_accepts_flags_of_tensile_kube():
    options = PROGRAM.parse(
        ["--address=127.0.0.1", "--port=9443", "--tlscert=c", "--tlskey=k", "--CA=ca", "--kubeconfig=f",
         "--master=https://m", "--incluster=false", "--ignore-selector-keys=clusterID,zone", "--klog.v=4"],
        {},
    )  # fmt: skip
    assert (options.address, options.port, options.client_ca) == ("127.0.0.1", 9443, "ca")
    assert options.surroundings.ignore_keys == ("clusterID", "zone")
    assert options.tlscert
    assert options.klog.verbosity == 4


def test_adds_dns_names_of_service_to_hosts():
    options = PROGRAM.parse(["--register", "--service-name=hook", "--namespace=ns"], {})
    assert "hook.ns.svc" in options.certificate_hosts
    assert not options.tlscert


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--tlscert=c"], "--tlskey"),
        (["--port=70000"], "--port"),
        (["--register"], "--service-name"),
        (["--register", "--url=http://x"], "https"),
    ],
)
def test_flag_errors_name_the_flag(arguments, flag):
    with pytest.raises(ConfigError, match=flag):
        PROGRAM.parse(arguments, {})
