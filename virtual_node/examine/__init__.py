"""One health model for the page, the metrics and the commands: facts in, faults out, no IO."""
