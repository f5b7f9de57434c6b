"""The rules of the examination, by what they judge.

Importing this package registers those about an installation, which all tools apply. Importing ``every`` registers those
about the objects of all clusters, too, and ``details`` those about one pod; they take longer, because they translate objects.
"""
