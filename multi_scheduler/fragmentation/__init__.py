"""Places pods where they fragment divisible devices least."""
