"""The mutating webhook: moves scheduling fields of labelled pods into the clusterSelector annotation."""
