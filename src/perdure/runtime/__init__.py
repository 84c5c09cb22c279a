"""The imperative shell: engine, client, executor. Decides nothing that the core can decide."""
