"""Decides which worker runs which job. No IO. Importers use ``model`` and ``strategies``."""
