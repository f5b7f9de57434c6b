"""The strategies, one module each. ``registry`` lists them; ``base`` has their base classes."""
