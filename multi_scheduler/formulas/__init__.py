"""Formulas of the scoring agents, from numbers to numbers. No IO, no API objects."""
