"""An example worker of a Swarm, and the check that no job had two owners."""
