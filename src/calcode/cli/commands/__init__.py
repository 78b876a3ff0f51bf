"""One file per command; each has a `COMMAND`, which `calcode.cli.app` registers."""
