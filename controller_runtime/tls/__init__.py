"""Key pairs, self-signed certificates, and TLS contexts that reload changed files."""
