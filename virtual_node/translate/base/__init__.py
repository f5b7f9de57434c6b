"""Ownership marks and labels of lower objects. The other packages of translate import it."""
