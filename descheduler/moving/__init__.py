"""The only writer of pods: requests of strategies, limits, eviction, re-creation and its durable records."""
