"""Informers that keep index and admission rules of a lower cluster current."""
