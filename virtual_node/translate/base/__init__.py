"""Ownership marks and labels of lower objects, which the other packages of translate import."""
