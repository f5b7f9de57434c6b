"""The files of a release: ``.github/workflows/release.yml`` runs ``python -m hack.release STEP``, and so can you."""
