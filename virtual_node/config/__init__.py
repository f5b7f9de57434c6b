"""The daemon's configuration: types, file, validation, and the flags that are the same settings."""
