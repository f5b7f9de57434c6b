"""What the processes of extender and annotator share: options, a usable configuration, clients of the clusters.

Imported by both programs. Imports nothing of this package but ``config``.
"""
