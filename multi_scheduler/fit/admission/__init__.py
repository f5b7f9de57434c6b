"""Predicts a lower cluster's admission: policy, quotas and limit ranges. No IO."""
