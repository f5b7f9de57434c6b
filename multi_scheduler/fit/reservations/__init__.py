"""Room that is promised to pods on their way, preemption, and the score."""
