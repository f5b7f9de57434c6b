"""Use a Dask cluster of the operator as notebooks do; print what it observed as JSON.

Runs in the suite's environment: dask_cluster.py NAMESPACE SCHEDULING IMAGE, with KUBECONFIG in the environment.
"""

# mypy: ignore-errors

import json
import sys

from dask.distributed import Client
from dask_kubernetes.operator import KubeCluster, make_cluster_spec

NAMESPACE, SCHEDULING, IMAGE = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]

spec = make_cluster_spec("company", image=IMAGE, n_workers=1, worker_command="dask worker")
for role in ("worker", "scheduler"):
    spec["spec"][role]["spec"].update(SCHEDULING)
scheduler = spec["spec"]["scheduler"]["spec"]["containers"][0]
scheduler["args"] = ["dask", "scheduler", "--host", "0.0.0.0"]


def where(number):
    import os  # noqa: PLC0415 - runs in a worker

    return os.environ["DASK_WORKER_NAME"], number * number


with (
    KubeCluster(custom_cluster_spec=spec, namespace=NAMESPACE, quiet=True, resource_timeout=150) as cluster,
    Client(cluster, timeout=120) as client,
):
    client.wait_for_workers(1, timeout=150)
    first = client.gather(client.map(where, range(4), pure=False))
    cluster.scale(2)
    client.wait_for_workers(2, timeout=150)
    both = client.gather(client.map(where, range(40), pure=False))
    total = client.submit(sum, [square for _, square in both]).result(timeout=120)
    logs = cluster.get_logs()
    seen = {
        "results of one worker": sorted(square for _, square in first),
        "sum of two workers": total,
        "workers after scaling": len(client.scheduler_info()["workers"]),
        "logs by pod": len(logs),
        "workers in the log of the scheduler": sum("Register worker" in text for text in logs.values()),
    }
print(json.dumps(seen))
