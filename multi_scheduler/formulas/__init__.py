"""The formulas of scoring agents: plain numbers in, plain numbers out. No IO, no objects of the API."""
