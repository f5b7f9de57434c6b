"""Decides which pod may run which job: the record of grants (``ledger``) and its transitions (``transition``). No IO."""
