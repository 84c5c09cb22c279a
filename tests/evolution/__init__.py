"""Tests of edits in flight."""
