"""The only writer of pods: requests, limits, eviction, recreation and its durable record."""
