"""Moves pods to other virtual nodes, such as pods that their lower cluster cannot start, and pods of lost clusters."""
