"""Lower namespaces: creation, adoption, and removal once they are empty."""
