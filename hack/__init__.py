"""Tools of the repository: the sandbox of real clusters."""
