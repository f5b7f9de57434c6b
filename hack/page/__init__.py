"""The live page with simulated clusters: for the documentation's screenshots and for tests in a browser."""
