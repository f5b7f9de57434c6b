"""The multi-scheduler: a scheduler extender that looks into the lower clusters before a pod is bound."""
