"""Which files `perdure dev` watches, and what it takes for a save [I-2]."""

from __future__ import annotations

from pathlib import Path

from perdure.cli.watching import Saves, Stamp, Watch

A, B = Path("a.py"), Path("b.py")
OLD: Stamp = (1, 10, 1)
NEW: Stamp = (2, 10, 1)
NEWER: Stamp = (3, 12, 1)


def told(first: dict[Path, Stamp], *looks: dict[Path, Stamp]) -> list[set[str]]:
    """The names that each look tells."""
    saves = Saves(first)
    return [{path.name for path in saves.see(look)} for look in looks]


def test_a_save_is_told_once_it_is_over() -> None:
    assert told({A: OLD}, {A: OLD}, {A: NEW}, {A: NEW}, {A: NEW}) == [set(), set(), {"a.py"}, set()]


def test_saves_in_quick_succession_are_one() -> None:
    both = {A: NEWER, B: NEW}
    assert told({A: OLD, B: OLD}, {A: NEW, B: OLD}, {A: NEWER, B: OLD}, both, both) == [
        set(), set(), set(), {"a.py", "b.py"}
    ]  # fmt: skip


def test_a_file_that_an_editor_replaces_is_saved_and_not_removed() -> None:
    replaced = {A: (2, 10, 7)}
    assert told({A: OLD}, {}, replaced, replaced) == [set(), set(), {"a.py"}]


def test_files_come_and_go() -> None:
    assert told({A: OLD}, {A: OLD, B: OLD}, {A: OLD, B: OLD}, {B: OLD}, {B: OLD}) == [set(), {"b.py"}, set(), {"a.py"}]


def test_a_file_that_is_watched_from_now_on_was_not_saved() -> None:
    saves = Saves({A: OLD})
    saves.admit({A: NEW, B: OLD})
    assert len(saves) == 2
    assert saves.see({A: OLD, B: OLD}) == set()
    assert saves.see({A: OLD, B: NEW}) == set()
    assert saves.see({A: OLD, B: NEW}) == {B}


def test_a_change_of_a_file_admitted_meanwhile_is_not_lost() -> None:
    saves = Saves({A: OLD})
    saves.admit({A: NEW})
    saves.see({A: NEW})
    assert saves.see({A: NEW}) == {A}


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(watch: Watch, folder: Path, *loaded: str, store: str = "none.db") -> set[str]:
    found = watch.look([folder / name for name in loaded], folder / store)
    return {path.relative_to(folder).as_posix() for path in found}


def test_python_files_are_watched_and_what_nobody_writes_is_not(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "sub/b.py", "test_a.py", "sub/conftest.py", "data.json", "a.db", "a.log", ".hidden.py")
    make(tmp_path, "__pycache__/a.py", ".git/x.py", "node_modules/x.py", "env/pyvenv.cfg", "env/lib/x.py")
    watch = Watch((tmp_path,), here=tmp_path)
    assert names(watch, tmp_path) == {"a.py", "sub/b.py"}
    assert names(watch, tmp_path, "test_a.py", "gone.py") == {"a.py", "sub/b.py", "test_a.py"}


def test_a_folder_that_is_named_counts_with_all_its_files_but_the_store(tmp_path: Path) -> None:
    make(tmp_path, "app/a.py", "texts/mail.txt", "texts/state.bin", "texts/state.bin-wal", "texts/x.log", "one.json")
    watch = Watch((tmp_path / "app",), (tmp_path / "texts", tmp_path / "one.json"), here=tmp_path)
    assert names(watch, tmp_path, store="texts/state.bin") == {"app/a.py", "texts/mail.txt", "one.json"}


def test_patterns_are_of_names_or_of_paths_from_here(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "a_pb2.py", "made/b.py", "sub/c.py", "sub/d.py")
    watch = Watch((tmp_path,), (), ("made", "*_pb2.py", "sub/c.*"), tmp_path)
    assert names(watch, tmp_path, "a_pb2.py") == {"a.py", "sub/d.py"}
