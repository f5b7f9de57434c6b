"""fabric8's Kubernetes client, with which Spark, Flink, Jenkins and most Java operators are written."""

from __future__ import annotations

from tests.company import maven
from tests.company.place import Place
from tests.company.software import POM, Observations, Software


async def _run(place: Place) -> Observations:
    libraries = await maven.ensure(print)
    seen = await place.java(POM.with_name("Client.java"), libraries, await place.account("client"))
    assert seen["exec"] == ["out", "err", 7], seen
    assert seen["exec with input"] == "42", seen
    assert seen["forwarded port"] == "page", seen
    assert seen["uploaded file"] == "content", seen
    assert seen["followed log"] == ["1", "2", "3"], seen
    return seen


SOFTWARE = Software(
    name="java-client",
    job="fabric8's client: pods by an informer, logs, followed logs, exec with exit code and input, a forwarded port, an "
    "uploaded file, a Job, deletion",
    run=_run,
    libraries=("kubernetes-client",),
)
