"""exec, attach, port-forward and run: upgraded connections that are spliced to the lower API server."""
