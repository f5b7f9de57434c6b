"""The kubelet API of a virtual node: serves logs, metrics and pod lists; forwards streams to the lower apiserver."""
