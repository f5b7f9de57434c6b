"""The commands of ``python -m hack.sandbox``: up and down, the demo, the demo of the chart.

Imports all other parts of ``hack.sandbox``.
"""
