"""Predicts admission in a lower cluster: policy, quotas, limit ranges. No IO. ``agent``, feeds and reservations import it."""
