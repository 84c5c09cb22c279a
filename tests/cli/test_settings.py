"""Where configuration comes from: arguments, then PERDURE_*, then [tool.perdure]."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli.connect import sqlite_path, store_url
from perdure.cli.problems import Problem
from perdure.cli.settings import Setting, setting


def project(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_arguments_come_before_the_environment_and_that_before_the_project(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setting("app", None) is None
    path = project(folder, '[tool.perdure]\napp = "project:app"\n')
    found = setting("app", None)
    assert found is not None
    assert (found.text, found.folder) == ("project:app", folder)
    assert str(path) in found.source
    monkeypatch.setenv("PERDURE_APP", "environment:app")
    assert setting("app", None) == Setting("environment:app", "PERDURE_APP")
    assert setting("app", "argument:app") == Setting("argument:app", "--app")


def test_the_nearest_project_with_settings_of_ours_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(folder, '[tool.perdure]\napp = "outer:app"\n')
    inner = folder / "inner" / "deep"
    inner.mkdir(parents=True)
    project(inner, "[tool.other]\nx = 1\n")
    monkeypatch.chdir(inner)
    found = setting("app", None)
    assert found is not None
    assert found.text == "outer:app"
    project(folder / "inner", '[tool.perdure]\napp = "inner:app"\n')
    found = setting("app", None)
    assert found is not None
    assert found.text == "inner:app"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.perdure\n", "not valid TOML"),
        ("[tool]\nperdure = 1\n", "not a table"),
        ("[tool.perdure]\nap = 'x:y'\n", "unknown setting 'ap'"),
        ("[tool.perdure]\napp = ['x:y']\n", "neither text nor a number"),
        ("[tool.perdure]\napp = true\n", "neither text nor a number"),
        ("[tool.perdure]\napp = ''\n", "is empty"),
    ],
)
def test_a_project_file_that_is_wrong_is_named(folder: Path, text: str, said: str) -> None:
    path = project(folder, text)
    with pytest.raises(Problem) as caught:
        setting("app", None)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_a_misspelt_setting_gets_a_suggestion(folder: Path) -> None:
    project(folder, "[tool.perdure]\nconcurency = 3\n")
    with pytest.raises(Problem) as caught:
        setting("app", None)
    assert "did you mean 'concurrency'?" in caught.value.hint


def test_an_empty_argument_is_refused(folder: Path) -> None:
    with pytest.raises(Problem, match="--store is empty"):
        setting("store", " ")


def test_a_relative_store_in_a_project_is_relative_to_the_project(folder: Path) -> None:
    assert store_url(Setting("sqlite:///x.db", "--store")) == "sqlite:///x.db"
    assert store_url(Setting("sqlite:///x.db", "[tool.perdure]", Path("/srv"))) == "sqlite:////srv/x.db"
    assert store_url(Setting("sqlite:////x.db", "[tool.perdure]", Path("/srv"))) == "sqlite:////x.db"
    assert store_url(Setting("memory://", "[tool.perdure]", Path("/srv"))) == "memory://"


def test_a_file_name_is_no_url_but_nearly(folder: Path) -> None:
    with pytest.raises(Problem) as caught:
        store_url(Setting("runs.db", "--store"))
    assert caught.value.hint == "a SQLite file is sqlite:///runs.db"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a.db", Path("a.db")),
        ("sqlite:////srv/a%20b.db", Path("/srv/a b.db")),
        ("sqlite:///a.db?network=allow", Path("a.db")),
        ("memory://", None),
        ("sqlite:///", None),
    ],
)
def test_the_file_of_a_url(url: str, path: Path | None) -> None:
    assert sqlite_path(url) == path
