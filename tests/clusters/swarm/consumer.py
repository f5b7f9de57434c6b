"""A job's process: holds the job's lock while it lives, and records its fencing token.

``python -I -S consumer.py DIRECTORY JOB TOKEN``. The kernel releases the lock when the process ends, however it ends, so a
second owner at any time is seen: it cannot get the lock.
"""

import fcntl
import signal
import sys

directory, job, token = sys.argv[1:]
with open(f"{directory}/{job}.lock", "a+", encoding="utf-8") as handle:  # noqa: PTH123 - starts quickly without pathlib
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        problem = "has two owners"
    else:
        handle.seek(0)
        last = int(handle.read() or 0)
        problem = "" if int(token) > last else f"token {token} after {last}"
    if problem:
        with open(f"{directory}/violations", "a", encoding="utf-8") as violations:  # noqa: PTH123
            violations.write(f"{job}: {problem}\n")
    handle.truncate(0)
    handle.write(token)
    handle.flush()
    signal.pause()
