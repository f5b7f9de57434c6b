"""PersistentVolumeClaims, PersistentVolumes and the placeholder pod that selects a node for a volume."""
