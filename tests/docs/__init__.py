"""The documentation does what it says, and keeps step with the code."""
