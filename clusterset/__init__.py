"""A set of lower clusters: the domain model, and ClusterProfiles. All components share it."""
