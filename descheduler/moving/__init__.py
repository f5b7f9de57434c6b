"""Everything that evicts, deletes or creates pods: the mover with its limits, re-creation, durable records."""
