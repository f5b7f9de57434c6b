"""Use the official Python client as programs do; print what it observed as JSON.

Runs in the suite's environment: kubernetes_client.py NAMESPACE SCHEDULING, with KUBECONFIG in the environment.
"""

# mypy: ignore-errors

import json
import sys
import time

from kubernetes import client, config, watch
from kubernetes.stream import portforward, stream

NAMESPACE, SCHEDULING = sys.argv[1], json.loads(sys.argv[2])
config.load_kube_config()
core, batch = client.CoreV1Api(), client.BatchV1Api()
SCRIPT = (
    "mkdir /tmp/www; echo page > /tmp/www/index.html; httpd -p 8080 -h /tmp/www; echo started; sleep 3600"
)


def pod(name, script, **spec):
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **SCHEDULING, **spec}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def phases(name):
    """Return the phases of a pod that a watch reports, until it runs or has finished."""
    seen = []
    watcher = watch.Watch()
    selector = f"metadata.name={name}"
    for event in watcher.stream(
        core.list_namespaced_pod, NAMESPACE, field_selector=selector, timeout_seconds=120
    ):
        phase = event["object"].status.phase
        if phase not in seen:
            seen.append(phase)
        if phase in {"Running", "Succeeded", "Failed"}:
            watcher.stop()
    return seen


def execute(*command, **options):
    return stream(
        core.connect_get_namespaced_pod_exec, "server", NAMESPACE, command=list(command), stderr=True,
        stdin=False, stdout=True, tty=False, **options,
    )  # fmt: skip


def exit_code():
    connection = execute("sh", "-c", "echo out; echo err >&2; exit 7", _preload_content=False)
    connection.run_forever(timeout=60)
    result = connection.read_stdout().strip(), connection.read_stderr().strip(), connection.returncode
    connection.close()
    return result


def interactive():
    """Send lines to a shell in the container, and return its last answer."""
    shell = stream(
        core.connect_get_namespaced_pod_exec, "server", NAMESPACE, command=["sh"], stderr=True, stdin=True,
        stdout=True, tty=False, _preload_content=False,
    )  # fmt: skip
    shell.write_stdin("echo $((20 + 22))\n")
    answer = shell.readline_stdout(timeout=60)
    shell.close()
    return answer


def forwarded():
    """Return the first line of the page that the container serves, through a forwarded port."""
    forward = portforward(core.connect_get_namespaced_pod_portforward, "server", NAMESPACE, ports="8080")
    socket = forward.socket(8080)
    socket.setblocking(True)
    socket.settimeout(60)
    socket.sendall(b"GET / HTTP/1.0\r\n\r\n")
    data = b""
    while chunk := socket.recv(4096):
        data += chunk
    return data.decode().split("\r\n")[0], data.decode().strip().splitlines()[-1]


def followed():
    """Return the lines that a watch of the log yields before the container ends."""
    core.create_namespaced_pod(
        NAMESPACE, pod("log", "for i in 1 2 3; do echo $i; sleep 1; done", restartPolicy="Never")
    )
    phases("log")
    return list(watch.Watch().stream(core.read_namespaced_pod_log, "log", NAMESPACE))


def job():
    """Return the condition of a Job with an index and a retry."""
    script = 'test "$JOB_COMPLETION_INDEX" != 1 -o -n "$AGAIN"'
    template = pod("job", script.replace(' -o -n "$AGAIN"', ""), restartPolicy="Never")
    template["metadata"].pop("name")
    spec = {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "backoffLimit": 1,
        "template": template,
    }
    batch.create_namespaced_job(NAMESPACE, {"metadata": {"name": "job"}, "spec": spec})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        status = batch.read_namespaced_job("job", NAMESPACE).status
        ended = [one.reason or one.type for one in status.conditions or [] if one.status == "True"]
        if "BackoffLimitExceeded" in ended and any(one.type == "Failed" for one in status.conditions):
            return sorted(set(ended)), status.completed_indexes
        time.sleep(0.5)
    return ended, status.completed_indexes


def deleted():
    core.delete_namespaced_pod("server", NAMESPACE)
    for event in watch.Watch().stream(
        core.list_namespaced_pod, NAMESPACE, field_selector="metadata.name=server", timeout_seconds=60
    ):
        if event["type"] == "DELETED":
            return event["object"].status.phase
    return "stays"


core.create_namespaced_pod(NAMESPACE, pod("server", SCRIPT))
print(
    json.dumps(
        {
            "phases": phases("server"),
            "log": core.read_namespaced_pod_log("server", NAMESPACE).strip(),
            "exec": exit_code(),
            "exec with input": interactive(),
            "forwarded port": forwarded(),
            "followed log": followed(),
            "Job": job(),
            "phase at deletion": deleted(),
        }
    )
)
