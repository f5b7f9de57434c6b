"""The fit agent: checks whether one of the lower nodes behind a virtual node has room for a pod, and reserves the room."""
