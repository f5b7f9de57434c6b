"""Tools of the repository: sandbox of real clusters, image, generated files, evaluation."""
