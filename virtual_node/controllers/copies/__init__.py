"""Lower copies of the upper objects that pods need."""
