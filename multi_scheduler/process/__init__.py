"""What the extender's and the annotator's process share: options, a usable configuration, clients of the clusters.

Imported by ``app``, ``annotator`` and the flags. Imports ``agent``, ``config`` and what these import.
"""
