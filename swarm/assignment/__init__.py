"""Decides which worker runs which job, with one module per strategy. No IO. Import ``model`` and ``strategies``."""
