"""Library and sidecar for the workers of a Swarm. Depends on aiohttp only."""
