"""The container image of all components, made with or without Docker from the same recipe."""
