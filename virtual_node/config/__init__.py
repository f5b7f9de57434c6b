"""The daemon's configuration: types, file, validation and the equivalent flags."""
