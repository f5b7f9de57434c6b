"""Fuzzing of everything that parses bytes from outside: `targets` lists it, `python -m tests.fuzz` runs it at length."""
