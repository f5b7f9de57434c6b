"""Which worker runs which job: pure functions over plain data, one module per strategy."""
