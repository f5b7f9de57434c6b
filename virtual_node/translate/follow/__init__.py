"""Lower copies of the objects that ``follow`` of a lower cluster names."""
