"""The mutation of pods and checks of workloads: selectors, patches, templates, volumes. Does no IO."""
