"""The domain of the product: names, policy, overrides, fields of pods, moves of pods. Pure functions over plain data, no IO."""
