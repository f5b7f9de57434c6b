"""Pure knowledge about Kubernetes objects that more than one component needs: no IO here."""
