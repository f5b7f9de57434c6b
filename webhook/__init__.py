"""The mutating webhook. It moves scheduling fields of virtual pods into the clusterSelector annotation."""
