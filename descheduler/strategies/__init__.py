"""The strategies, a module each. ``registry`` finds them; ``base`` is what one has to be."""
