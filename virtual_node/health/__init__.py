"""One health model for all tools: facts in, faults out. Pure; the page, the metrics and the commands share its verdict."""
