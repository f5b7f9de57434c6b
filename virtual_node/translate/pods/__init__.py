"""Translation of pods: the lower pod, its updates, and the status of the upper pod."""
