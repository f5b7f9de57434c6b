"""Informers that keep the index and the admission rules of a lower cluster current. Only the fit agent imports them."""
