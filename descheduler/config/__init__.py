"""The descheduler's options and policy file."""
