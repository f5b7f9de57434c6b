"""Lower copies of objects of the kinds in a lower cluster's ``follow`` setting."""
