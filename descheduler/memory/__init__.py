"""What the descheduler keeps in a ConfigMap across restarts: recent moves and avoided virtual nodes."""
