"""HTTP servers: accepting and limiting connections, health checks, the metrics page."""
