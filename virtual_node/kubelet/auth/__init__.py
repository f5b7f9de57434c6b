"""Authentication and authorization of the kubelet API, and the cache of reviews."""
