"""The command line: one module per command in `commands`, and what they share beside it."""
