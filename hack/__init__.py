"""Tools of the repository, such as the sandbox of real clusters, the image, generated files and evaluations."""
