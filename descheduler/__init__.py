"""The descheduler: pods that their lower cluster cannot schedule get another chance elsewhere."""
