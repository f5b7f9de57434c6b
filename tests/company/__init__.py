"""Real software that others wrote, run against virtual nodes: ``python -m tests.company``.

Each entry of ``entries`` installs a program as its users do, lets it do its usual job, and returns what it observed. The
suite runs an entry twice, with pods of the lower cluster and with pods of the virtual node, and writes the difference of
the two into docs/reference/works-with.md.

Without an entry, because they were not to be had as a complete Go module: Tekton Pipelines, cluster-autoscaler, Headlamp's
backend, and GitLab Runner, which needs modules that the module proxy does not have (``step-runner``, ``labkit``, ``moa``,
``fleeting``).
"""
