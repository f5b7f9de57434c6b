"""The rules of ``inspect``: functions from facts to findings. They do no IO, and do not depend on each other."""
