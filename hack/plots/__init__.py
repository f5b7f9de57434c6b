"""Plots and tables of the documentation that are drawn from committed raw results. No IO."""
