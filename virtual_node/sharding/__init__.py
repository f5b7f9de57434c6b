"""Distributes lower clusters over the replicas of a process (``leaderElection.mode: Sharded``).

``assignment`` decides which replica runs which cluster, and ``member`` which share this replica takes; both do no IO.
``shards`` takes and releases clusters by Leases.
"""
