"""JupyterHub with its KubeSpawner: a notebook server is spawned, used, lost, spawned again and stopped."""

from __future__ import annotations

from tests.company import python_image
from tests.company.place import Place
from tests.company.software import Observations, Software


async def _run(place: Place) -> Observations:
    image, archive = await python_image.write("jupyter", print)
    place.import_archive(archive)
    assert place.sandbox.bridge is not None
    seen = await place.script("jupyter_hub.py", image, place.sandbox.bridge.address)
    assert seen["last progress"] is True, seen
    assert seen["notebook"] == [201, "Untitled.ipynb"], seen
    return seen


SOFTWARE = Software(
    name="kubespawner",
    job="a hub spawns a notebook server with followed events, creates a notebook, notices that the pod was deleted, "
    "and spawns and stops another one",
    run=_run,
    environment="jupyter",
    packages=("jupyterhub", "jupyterhub-kubespawner", "jupyter-server"),
)
