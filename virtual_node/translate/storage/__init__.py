"""PersistentVolumeClaims, PersistentVolumes and the pod that chooses a node for a volume."""
