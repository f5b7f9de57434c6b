"""ConfigMaps, Secrets and ServiceAccount tokens that follow pods into the lower cluster."""
