"""Lower clusters from ClusterProfile objects of the upper cluster (multicluster.x-k8s.io, KEP-4322 and KEP-5339)."""
