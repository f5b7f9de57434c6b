"""``virtual-node doctor``: checks every link of an installation and reports the first that fails."""
