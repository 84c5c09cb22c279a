"""Every store against the public suite, and against each other."""
