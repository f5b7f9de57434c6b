"""Kubernetes' own e2e suite, run directly on a lower cluster and through a virtual node, with a comparison.

``python -m hack.conformance`` prints how many tests pass each way, the ratio, and every test that differs.
"""
