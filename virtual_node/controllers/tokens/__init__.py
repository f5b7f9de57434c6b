"""Tokens of upper ServiceAccounts for lower pods."""
