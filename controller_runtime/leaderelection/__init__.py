"""Leader election by a Lease, as in client-go's tools/leaderelection."""
