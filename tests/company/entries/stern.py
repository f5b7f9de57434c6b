"""stern: follows the logs of several pods, also of those that start later."""

from __future__ import annotations

from typing import Any

from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest


async def _run(place: Place) -> Observations:
    log = await place.start(
        "stern", "company", f"--namespace={place.namespace}", "--template={{.PodName}} {{.Message}}\n",
        "--kubeconfig", str(place.cluster.kubeconfig), "--color=never",
    )  # fmt: skip
    await place.apply(_pod(place, "company-first"))
    await place.apply(_pod(place, "company-second"))

    async def followed() -> list[str]:
        lines = log.read_text(encoding="utf-8").splitlines()
        return sorted(line for line in lines if line.startswith("company-"))

    wanted = [f"company-{name} {number}" for name in ("first", "second") for number in range(1, 4)]
    await place.becomes(followed, wanted, "stern shows all lines of both pods")
    return {"lines": await followed()}


def _pod(place: Place, name: str) -> dict[str, Any]:
    script = "for i in 1 2 3; do echo $i; sleep 1; done"
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "containers": [container], **place.scheduling}
    return manifest("Pod", name, metadata={"namespace": place.namespace}, spec=spec)


SOFTWARE = Software(
    name="stern",
    job="follows the logs of two pods that start after it",
    run=_run,
    programs=("stern",),
)
