"""Durable pipelines in plain Python."""
