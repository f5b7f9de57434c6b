"""The paths of a kubelet's server with its responses, recorded from kubelet 1.37, and where a virtual node differs.

``NS/POD`` in a path is a running pod with container ``main``. A response is the status, the begin of the content type,
and the Location or Allow header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
TEXT, JSON, HTML = "text/plain", "application/json", "text/html"


class Response(NamedTuple):
    """What a client sees of a response before its body."""

    status: int
    content_type: str = TEXT
    header: str = ""
    """Location, or Allow."""


Responses = Mapping[str, Response]
"""By method."""


def _all(response: Response) -> Responses:
    return dict.fromkeys(METHODS, response)


def _only(methods: str, response: Response) -> Responses:
    """Return the responses of a web service, which refuses other methods."""
    refused = _all(Response(405, header=methods))
    return {**refused, **dict.fromkeys(methods.split(", "), response)}


_NOTHING = _all(Response(404))
_OK = _all(Response(200))
_EITHER = "GET, POST"
_NO_STREAM = _only(_EITHER, Response(400))
_NO_UPGRADE = _only(_EITHER, Response(500))


def _redirect(to: str) -> Responses:
    return {method: Response(307, HTML if method in {"GET", "HEAD"} else "", to) for method in METHODS}


KUBELET: Mapping[str, Responses] = {
    **dict.fromkeys(("/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop", "/healthz?verbose"), _OK),
    **dict.fromkeys(("/metrics", "/metrics/slis", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"), _OK),
    "/configz": _all(Response(200, JSON)),
    **dict.fromkeys(("/flagz", "/statusz"), _OK),
    **dict.fromkeys(("/pods", "/pods/", "/runningpods/"), _only("GET", Response(200, JSON))),
    **dict.fromkeys(("/stats/summary", "/stats/summary/"), _only(_EITHER, Response(200, JSON))),
    **{path: _redirect(f"{path}/") for path in ("/runningpods", "/stats", "/logs", "/debug/pprof")},
    "/checkpoint": _redirect("/checkpoint/"),
    "//pods": _redirect("/pods"), "/pods//": _redirect("/pods/"), "/./pods": _redirect("/pods"),
    "/stats/../pods": _redirect("/pods"),
    "/logs/": _only("GET", Response(200, HTML)),
    "/logs/none": _only("GET", Response(404)),
    "/debug/pprof/cmdline": _only("GET", Response(200)),
    "/debug/flags/v": {**_all(Response(406)), "PUT": Response(400)},
    "/checkpoint/NS/POD/main": _only("POST", Response(500)),
    **dict.fromkeys(("/containerLogs/NS/POD/main", "/containerLogs/NS/POD/main/"), _only("GET", Response(200, ""))),
    **dict.fromkeys(("/containerLogs/NS/none/main", "/containerLogs/NS/POD/none"), _only("GET", Response(404))),
    **dict.fromkeys(("/exec/NS/POD/main", "/exec/NS/POD/main/", "/attach/NS/POD/main/"), _NO_STREAM),
    **dict.fromkeys(("/exec/NS/POD/main?command=a&output=1", "/attach/NS/POD/main?output=1"), _NO_UPGRADE),
    **dict.fromkeys(("/portForward/NS/POD", "/portForward/NS/POD/"), _NO_UPGRADE),
    "/portForward/NS/none": _only(_EITHER, Response(404)),
    **dict.fromkeys(("/run/NS/POD/main", "/run/NS/POD/main/"), _only("POST", Response(500))),
    **dict.fromkeys(
        ["/", "/livez", "/readyz", "/healthz/", "/healthz/none", "/healthz/ping/", "/pods/x", "/Pods", "/stats/", "/stats/container", "/stats/x", "/spec", "/metrics/", "/metrics/slis/", "/metrics/cadvisor/", "/metrics/resource/", "/metrics/probes/", "/metrics/none", "/metrics/resource/v1alpha1", "/metrics%2Fprobes", "/configz/", "/flagz/", "/statusz/", "/debug", "/debug/", "/debug/pprof/", "/debug/flags/v/", "/checkpoint/", "/containerLogs", "/containerLogs/", "/containerLogs/NS", "/containerLogs/NS/POD", "/containerLogs/NS/POD/main/extra", "/exec", "/portForward", "/portForward/NS/POD/uid/x", "/run", "/none", "/none/", "/cri", "/cri/exec/x", "/containers/", "/api", "/openapi/v2", "/version"],
        _NOTHING,
    ),
}  # fmt: skip
"""Flags ComponentFlagz and ComponentStatusz are on, as by default from 1.37 on."""

_DISABLED = _all(Response(405))
DIFFERENT: Mapping[str, Responses] = {
    **dict.fromkeys(("/configz", "/flagz", "/statusz"), _NOTHING),
    **dict.fromkeys(("/checkpoint", "/checkpoint/NS/POD/main"), _NOTHING),
    **dict.fromkeys(
        ("/logs/", "/logs/none", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/flags/v"), _DISABLED
    ),
    **dict.fromkeys(("/exec/NS/POD/main?command=a&output=1", "/attach/NS/POD/main?output=1"), _NO_STREAM),
    **dict.fromkeys(("/portForward/NS/POD", "/portForward/NS/POD/"), _NO_STREAM),
}
"""Responses of a virtual node where it differs on purpose, as docs/operate/other-programs.md describes."""


def expected_of_virtual_node() -> Iterator[tuple[str, str, Response]]:
    """Yield method, path and response of a virtual node."""
    for path, responses in {**KUBELET, **DIFFERENT}.items():
        for method, response in responses.items():
            yield method, path, response


def matches(expected: Response, status: int, headers: Mapping[str, str]) -> bool:
    """Report whether a response is as expected. The body of a redirect, and empty bodies, have no fixed type."""
    found = headers.get("Content-Type", "")
    has_type = expected.status == 307 or found.startswith(expected.content_type)
    return (
        status == expected.status
        and has_type
        and expected.header == (headers.get("Location") or headers.get("Allow") or "")
    )
