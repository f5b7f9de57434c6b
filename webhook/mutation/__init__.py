"""What the webhook changes in a pod, as pure functions: selectors, patches, templates, volumes."""
