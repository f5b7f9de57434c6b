"""Generate the parts of the chart that follow from the code: ``python -m hack.chart``."""
