"""Commands for people: what is going on, and why."""
