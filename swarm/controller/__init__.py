"""The asyncio side of the component: caches in, writes out."""
