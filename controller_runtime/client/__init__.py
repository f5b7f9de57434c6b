"""The API client: verbs on objects, transport, retries, and limits on what a server may answer."""
