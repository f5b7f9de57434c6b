"""The DAG of the suite: KubernetesPodOperators in the namespace and on the node that the environment names."""

# mypy: ignore-errors

import json
import os

import pendulum
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from kubernetes.client import models

SCHEDULING = json.loads(os.environ["COMPANY_SCHEDULING"])
ANSWER = "mkdir -p /airflow/xcom; echo '{\"answer\": 42}' > /airflow/xcom/return.json"


def task(name, script, **options):
    tolerations = [
        models.V1Toleration(key=one["key"], operator=one["operator"]) for one in SCHEDULING["tolerations"]
    ]
    return KubernetesPodOperator(
        task_id=name, name=name, namespace=os.environ["COMPANY_NAMESPACE"], image="busybox:1.36",
        cmds=["sh", "-c", script], node_selector=SCHEDULING["nodeSelector"], tolerations=tolerations,
        in_cluster=False, get_logs=True, poll_interval=1, startup_check_interval_seconds=1, **options,
    )  # fmt: skip


with DAG("company", schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:
    result = task("result", f"echo first line; sleep 2; {ANSWER}; echo last line", do_xcom_push=True)
    deferred = task("deferred", "echo deferred line; sleep 3", deferrable=True, do_xcom_push=False)
    fails = task("fails", "exit 3", do_xcom_push=False, on_finish_action="keep_pod")
    result >> deferred >> fails
