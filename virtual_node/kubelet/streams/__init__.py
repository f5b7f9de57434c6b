"""exec, attach, port-forward and run: an upgraded connection joined to the lower API server."""
