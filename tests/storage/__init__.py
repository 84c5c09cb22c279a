"""What only one store has: files, locks, processes, and what goes wrong with them."""
