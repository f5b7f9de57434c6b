"""The sidecar: runs a process for each job. ``command`` is its command line; nothing in the library imports it."""
