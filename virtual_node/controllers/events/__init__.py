"""Events of lower pods, repeated on the upper pods."""
