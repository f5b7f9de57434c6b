"""State that the descheduler keeps in ConfigMaps across restarts: recent moves and avoided virtual nodes."""
