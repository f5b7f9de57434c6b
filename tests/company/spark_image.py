"""Image of Spark on Kubernetes: Python with pyspark, Java and a shell, as Spark's own Dockerfile makes it."""

from __future__ import annotations

import shutil
from pathlib import Path

from hack.sandbox import SandboxError
from hack.sandbox.builds.programs import Progress
from hack.sandbox.command import command
from tests.company import python_image

JOB = Path(__file__).with_name("scripts") / "spark_job.py"
"""The job, which is in folder ``/opt`` of the image."""
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Compiles less: no virtual machine runs long enough to profit from it."""
_HOME = f"/{python_image.SITE}/pyspark"
_ENTRYPOINT = """#!/bin/bash
# Starts a driver or an executor, as the entrypoint of Spark's own image does.
set -e
role=$1
shift
case "$role" in
driver)
  exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \\
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
  ;;
executor)
  options=()
  for name in "${!SPARK_JAVA_OPT_@}"; do options+=("${!name}"); done
  exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_CONF_DIR:$SPARK_HOME/jars/*" \\
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \\
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \\
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \\
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
esac
"""


async def write(environment: str, progress: Progress) -> tuple[str, Path]:
    """Return the name and the archive of the image, made once and kept in the cache.

    Args:
        environment: a file of ``python`` with pyspark, without its suffix.
        progress: called with each step.

    Raises:
        SandboxError: Java is missing, or the packages cannot be installed.
    """
    if not shutil.which("jlink"):
        raise SandboxError("this entry needs Java: apt-get install openjdk-17-jdk-headless")
    addition = python_image.Addition(
        _add_java,
        recipe=Path(__file__).read_bytes() + JOB.read_bytes(),
        entrypoint=("/opt/entrypoint.sh",),
        environment=(
            f"SPARK_HOME={_HOME}",
            "SPARK_CONF_DIR=/opt/spark/conf",
            "JAVA_HOME=/opt/java",
            f"JAVA_TOOL_OPTIONS={JAVA_OPTIONS}",
        ),
    )
    return await python_image.write(environment, progress, addition)


async def _add_java(root: Path, base: Path) -> None:
    options = ("--add-modules", "ALL-MODULE-PATH", "--strip-java-debug-attributes")
    java = root / "opt" / "java"
    await command(["jlink", *options, "--output", java], timeout=600)
    # Classes in the form in which they are mapped into memory, so that each start takes less time.
    await command([java / "bin" / "java", "-Xshare:dump"])
    programs = root / "usr" / "bin"
    for program in ("bash", "busybox"):
        shutil.copy(f"/bin/{program}", programs / program)
    for applet in (await command(["/bin/busybox", "--list"])).stdout.split():
        if not (programs / applet).exists():
            (programs / applet).symlink_to("busybox")
    await python_image.add_libraries(root, base, [programs / "bash", java / "bin" / "java"])
    entrypoint = root / "opt" / "entrypoint.sh"
    entrypoint.write_text(_ENTRYPOINT, encoding="utf-8")
    entrypoint.chmod(0o755)
    shutil.copy(JOB, root / "opt")
