"""Commands for people that show, explain or change an installation."""
