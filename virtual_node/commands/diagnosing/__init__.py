"""Rules about one pod or node: what each sees, how sure it is, what to do next."""
