"""JSON from the command line, from files and from stdin."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from perdure.cli.inputs import read_json
from perdure.cli.problems import Problem


def test_where_json_comes_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "x.json").write_bytes('\ufeff{"a": "é"}\n'.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1]")))
    assert read_json('{"a": 1}', "INPUT") == b'{"a": 1}'
    assert read_json("@x.json", "INPUT") == '{"a": "é"}\n'.encode()
    assert read_json("-", "INPUT") == b"[1]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "INPUT: not JSON"),
        ("{a: 1}", "line 1, column 2"),
        ('{"a": NaN}', "NaN is no JSON value"),
        ("[1] [2]", "Extra data"),
        ("@missing.json", "No such file"),
        ("@.", "cannot be read"),
        ("@latin1", "not UTF-8 text (byte 1)"),
        ("[" * 100_000, "INPUT: nested too deeply"),
        ('"\udcff"', "not UTF-8 text"),
    ],
)
def test_what_is_no_json(folder: Path, text: str, said: str) -> None:
    (folder / "latin1").write_bytes(b'"\xe9"')
    with pytest.raises(Problem) as caught:
        read_json(text, "INPUT")
    assert said in caught.value.message
