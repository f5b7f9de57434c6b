"""Shared by the commands: connections, reading, permissions, output. Imports no command."""
