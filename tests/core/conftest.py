"""Property tests here give the same answer every time and on any machine: no deadline, no chance, no memory."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("core", deadline=None, derandomize=True, database=None)
settings.load_profile("core")
