"""Payloads to JSON text and back, exactly or not at all [P-1]."""
