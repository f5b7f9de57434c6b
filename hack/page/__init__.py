"""The live page with made-up clusters behind it: for its screenshots in the documentation, and for tests in a browser."""
