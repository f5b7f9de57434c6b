"""The documentation: pages generated from the code (``python -m hack.docs.reference``), the check of links, and the site."""
