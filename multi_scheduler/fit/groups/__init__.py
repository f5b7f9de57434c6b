"""Groups of pods that start together or not at all: who they are, when their time has come, and their reservations."""
