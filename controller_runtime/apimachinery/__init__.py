"""What all Kubernetes objects share: decoding, quantities, selectors, patches, timestamps. No IO; as k8s.io/apimachinery."""
