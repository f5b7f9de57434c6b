"""The mutating webhook: scheduling fields of virtual pods move into the clusterSelector annotation."""
