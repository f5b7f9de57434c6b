"""The daemon's configuration: types, file with its validation, and the equivalent flags."""
