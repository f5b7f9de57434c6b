"""Measured usage of lower nodes: sources, feeds and the stores that agents read.

``sources`` creates a source, ``feed`` fills a ``store``. ``shared`` connects them; agents read through ``view``.
"""
