"""Fuzzing of everything that parses bytes from outside: `targets` says what, `python -m tests.fuzz` runs it for long."""
