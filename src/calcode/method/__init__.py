"""The steps of METHOD.md, one per file; the public names are exported by `calcode`."""
