"""One line about a pod for people; used by the commands and by the page."""
