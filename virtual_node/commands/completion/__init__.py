"""``virtual-node completion``: completes commands, flags and names of objects in shells."""
