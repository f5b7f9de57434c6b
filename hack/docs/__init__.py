"""Documentation pages that are generated from the code: ``python -m hack.docs.reference``."""
