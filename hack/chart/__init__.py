"""What of the chart is made from the code: ``python -m hack.chart``."""
