"""Scenarios: a run's life as a script, run against the core, the memory store or SQLite."""
