"""A one-line summary of a pod, for the commands and the web page."""
