"""Parts of ``bench_exact``: clusters, pods, bursts, scenes, an extender to compare with, and the tables."""
