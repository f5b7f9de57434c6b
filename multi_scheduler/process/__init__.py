"""What the processes of extender and annotator share: options, a usable configuration, clients of the clusters.

Imported by ``app``, ``annotator`` and the flags. Imports ``agent``, ``config`` and what these import.
"""
