"""The state of the lower clusters, and the room that is reserved in them. Agents read it; the fit agent reserves room."""
