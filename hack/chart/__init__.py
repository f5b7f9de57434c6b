"""Generate the chart's files and manifests that follow from code or values.yaml: ``python -m hack.chart``."""
