"""The domain of the product: names, policy, overrides, eligibility, moves of pods. Pure functions over plain data, no IO."""
