"""Copies events of lower pods to the upper pods."""
