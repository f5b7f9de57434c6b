"""What every daemon does: arguments, flags, signals, listening addresses, version and event-loop metrics."""
