"""The asyncio runtime that every component shares: client, informers, work queues, serving."""
