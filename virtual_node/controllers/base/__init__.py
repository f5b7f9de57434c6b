"""Shared by the controllers: the context of one lower cluster, preconditions, problems of pods."""
