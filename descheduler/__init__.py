"""Moves pods that their lower cluster cannot start, and pods of lost clusters, to other virtual nodes."""
