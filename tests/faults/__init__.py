"""Faults that users of such systems met: one test for each kind that this release could have."""
