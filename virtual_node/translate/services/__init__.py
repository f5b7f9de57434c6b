"""Services and their endpoints in the lower cluster."""
