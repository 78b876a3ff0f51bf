"""METHOD.md as code, one step per file; the public names are those of `calcode`."""
