"""Groups of pods that start together or not at all: their members, when they may start, their reservations."""
