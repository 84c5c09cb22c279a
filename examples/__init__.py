"""Examples of perdure: each folder runs with one command and has a test under `tests/examples`."""
