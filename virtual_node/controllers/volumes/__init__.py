"""PersistentVolumeClaims and PersistentVolumes, and the choice of a lower node for new volumes."""
