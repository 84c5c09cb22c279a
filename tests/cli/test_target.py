"""From `module:attribute` or `file.py:attribute` to an App, and what is said when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.cli.problems import Problem
from perdure.cli.target import find_app
from tests.cli.project import SHOP


@pytest.mark.parametrize("target", ["shop:app", "shop.py:app", "./shop.py:app", None])
def test_ways_to_name_an_application(project: Path, target: str | None) -> None:
    assert list(find_app(target).app.pipelines) == ["job"]


def test_an_absolute_file(project: Path) -> None:
    assert list(find_app(f"{project / 'shop.py'}:app").app.pipelines) == ["job"]


def test_a_file_inside_of_a_package_is_imported_as_part_of_it(project: Path) -> None:
    package = project / "deep" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("from perdure import App\nfrom pkg.other import job\napp = App(job.bind())\n")
    (package / "other.py").write_text(SHOP)
    assert list(find_app("deep/pkg/part.py:app").app.pipelines) == ["job"]


def test_a_file_whose_name_is_taken_or_odd(project: Path) -> None:
    for name in ("json.py", "my-shop.py"):
        (project / "apps").mkdir(exist_ok=True)
        (project / "apps" / name).write_text(SHOP)
        assert list(find_app(f"apps/{name}:app").app.pipelines) == ["job"]


def test_an_application_of_a_project_further_up(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert list(find_app(None).app.pipelines) == ["job"]


@pytest.mark.parametrize(
    ("target", "said", "hint"),
    [
        ("shop", "not of the form module:attribute", "payouts:app"),
        (":app", "not of the form module:attribute", ""),
        ("shop:", "not of the form module:attribute", ""),
        ("shop:ap", "has no attribute 'ap'", "it has shop:app"),
        ("shop:not_an_app", "is of type Pipeline, not an App", "bind"),
        ("shop:app.x", "has no attribute 'app.x'", "it has shop:app"),
        ("shpo:app", "there is no module 'shpo' here", "shpo.py:app"),
        ("os:app", "has no attribute 'app'", "no App at all"),
        ("missing.py:app", "there is no file missing.py", ""),
        ("a b:app", "not the name of a module", ""),
        ("bad_syntax:app", "importing bad_syntax failed (bad_syntax.py, line 1): SyntaxError", "PERDURE_DEBUG=1"),
        ("bad_import:app", "importing bad_import failed (bad_import.py, line 2): ModuleNotFoundError", ""),
        ("bad_pipeline:app", "importing bad_pipeline failed (bad_pipeline.py, line 2): DefinitionError", ""),
        ("exits:app", "importing exits ended the program", "__main__"),
        ("bad_syntax.py:app", "importing bad_syntax.py failed (bad_syntax.py, line 1): SyntaxError", ""),
    ],
)
def test_wrong_targets(project: Path, target: str, said: str, hint: str) -> None:
    (project / "bad_syntax.py").write_text("def f(:\n")
    (project / "bad_import.py").write_text("\nimport nothing_of_that_name\n")
    (project / "bad_pipeline.py").write_text(
        "from perdure import App, Pipeline\nPipeline(id='', input=int, deps=object, steps=(), output=None)\n"
    )
    (project / "exits.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(Problem) as caught:
        find_app(target)
    assert said in caught.value.message
    assert caught.value.message.startswith("--app: ")
    assert hint in caught.value.hint


def test_the_source_of_a_wrong_target_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Problem, match="no application given"):
        find_app(None)
    monkeypatch.setenv("PERDURE_APP", "nowhere:app")
    with pytest.raises(Problem, match="PERDURE_APP: there is no module"):
        find_app(None)
    assert os.environ["PERDURE_APP"] == "nowhere:app"
