"""One module per command; each holds the function that typer calls, and what only that command needs."""
