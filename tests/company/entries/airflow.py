"""Airflow's KubernetesPodOperator: logs, a result by the sidecar, a deferrable task and a failure."""

from __future__ import annotations

from tests.company.place import Place
from tests.company.software import Observations, Software


async def _run(place: Place) -> Observations:
    seen = await place.script("airflow_dag.py")
    assert seen["tasks"] == {"result": "success", "deferred": "success", "fails": "failed"}, seen
    assert seen["result of the sidecar"] == {"answer": 42}, seen
    left = sorted(pod["metadata"]["labels"]["task_id"] for pod in await place.pods("dag_id"))
    assert left == ["fails"], left
    (failed,) = await place.pods("task_id=fails")
    state = failed["status"]["containerStatuses"][0]["state"]["terminated"]
    return {**seen, "pods that stay": left, "exit code": state["exitCode"]}


SOFTWARE = Software(
    name="airflow",
    job="a DAG of KubernetesPodOperators: a result by the XCom sidecar with followed logs, a deferrable task, a failure",
    run=_run,
    environment="airflow",
    packages=("apache-airflow-core", "apache-airflow-providers-cncf-kubernetes", "kubernetes"),
)
