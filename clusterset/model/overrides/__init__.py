"""Overrides: changes that the operator makes to the pods of one lower cluster. No IO."""
