"""Cases from public bug reports, tried on real clusters: README.md lists each with its source, input and result."""
