"""Decides which worker runs which job, with one module per strategy. No IO. Importers use ``model`` and ``strategies``."""
