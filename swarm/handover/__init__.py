"""Who may run which job: the record of grants and its transitions, pure functions over plain data."""
