"""A command that waits for the store says so."""

from __future__ import annotations

import pytest

from perdure.cli.connect import trouble_sayer
from perdure.ports.store import Trouble


def test_whoever_waits_is_told_why_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    """R-8: a full disk makes a submission wait, not fail; without a word it looks like a hang."""
    say = trouble_sayer()
    say(Trouble("the disk is full\x1b[2J", 0.1, False))
    say(Trouble("the disk is full\x1b[2J", 0.2, False))
    say(Trouble("the file was deleted", 0.0, True))  # raised, and reported as an error
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "waiting: the disk is full [2J; trying again, Ctrl-C gives up\n")
