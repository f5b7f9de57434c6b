"""Run the DAG of ``configurations``; print what its tasks returned as JSON.

Runs in the suite's environment: airflow_dag.py NAMESPACE SCHEDULING, with KUBECONFIG in the environment.
"""

# mypy: ignore-errors
# ruff: noqa: E402 - Airflow reads its settings when it is imported

import json
import logging
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

HOME = tempfile.mkdtemp(prefix="airflow-")
DAGS = Path(__file__).parents[1] / "configurations"
EXTRA = {"kube_config_path": os.environ["KUBECONFIG"], "xcom_sidecar_container_image": "busybox:1.36"}
os.environ |= {
    "AIRFLOW_HOME": HOME,
    "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes", "extra": EXTRA}),
    "COMPANY_NAMESPACE": sys.argv[1],
    "COMPANY_SCHEDULING": sys.argv[2],
    "PYTHONDONTWRITEBYTECODE": "1",
}
sys.path.insert(0, str(DAGS))
sys.dont_write_bytecode = True

from airflow.utils.db import initdb

LINES = ("first line", "last line", "deferred line")


def logged(text):
    """Return the lines of the pods' logs that Airflow copied."""
    return [line for line in LINES if line in text]


class Log(logging.Handler):
    """Keeps the messages of all loggers."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


class Copy:
    """Keeps what is written to a stream, and writes it."""

    def __init__(self, stream):
        self.stream, self.text = stream, ""

    def write(self, text):
        self.text += text
        return self.stream.write(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)


log, copy = Log(), Copy(sys.stderr)
logging.getLogger().addHandler(log)
sys.stderr = copy
with redirect_stdout(copy):
    initdb()
    from company_dag import dag

    run = dag.test()
    instances = {one.task_id: one for one in run.get_task_instances()}
    states = {name: str(one.state) for name, one in sorted(instances.items())}
    pushed = instances["result"].xcom_pull(task_ids="result")
if states["result"] != "success":
    sys.exit("the task with the sidecar did not succeed, see above")
print(
    json.dumps(
        {
            "tasks": states,
            "result of the sidecar": pushed,
            "log lines": logged("\n".join([copy.text, *log.messages])),
        }
    )
)
