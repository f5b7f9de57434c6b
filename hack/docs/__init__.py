"""Pages of the documentation that are made from the code: ``python -m hack.docs.reference``."""
