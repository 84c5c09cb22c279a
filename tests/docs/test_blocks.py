"""Every code block of README.md and docs runs; and the runner fails when a block does not do what its page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.docs_blocks import blocks_of, matches, split_commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(page: Path) -> tuple[int, str]:
    """Run one page as `make docs` does."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_blocks", str(page)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, note: Callable[[str], None]) -> None:
    code, printed = run(page)
    if code:
        pytest.fail(printed, pytrace=False)
    for line in printed.splitlines():
        if ": not run: " in line:
            note(line.removeprefix(f"{ROOT}/"))


GOOD = """
# A page

<!-- file: pkg/calc.py -->
```python
def double(x: int) -> int:
    return 2 * x
```

```python
from dataclasses import dataclass
from pkg.calc import double

@dataclass
class Box:
    size: int
```

<!-- expect: Box(size=4) ... bye -->
```python
print(Box(double(2)), "and bye")
```

Text in between.

<!-- raises: ZeroDivisionError -->
```python
1 / 0
```

```python
import sqlite3
with sqlite3.connect("x.db") as database:
    database.execute("create table t as select 1 as a, 'b' as b")
database.close()
```

<!-- db: x.db -->
```sql
select a, b from t
```

<!-- output -->
```text
1 | b
```

```console
$ name=world
$ echo "hello   $name" && echo two && echo three
hello w...d
...
three
$ sleep 100 &
$ kill %1
$ python -c "import pkg.calc as c; \\
> print(c.double(21))"
42
```

<!-- exit: 3 -->
```bash
echo oops
exit_with() { return $1; }
exit_with 3
```

<!-- no-run: it would
     take a week -->
```console
$ make world
```

```toml
a = 1
```

- in a list

  ```json
  {"a": 1}
  ```
"""


def test_a_page_with_every_kind_of_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(GOOD, encoding="utf-8")
    code, printed = run(page)
    assert code == 0, printed
    assert "not run: it would" in printed
    assert "12 blocks" in printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nraise KeyError('k')\n```\n", 'page.md", line 2'),
        ("<!-- expect: b -->\n```python\nprint('a')\n```\n", "printed\n    a\nbut the page shows\n    b"),
        ("<!-- raises: KeyError -->\n```python\nx = 1\n```\n", "did not raise KeyError"),
        ("<!-- raises: KeyError -->\n```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```console\n$ echo a\nb\n```\n", "printed\n    a"),
        ("```console\n$ false\n$ true\n```\n", "exited with 1"),
        ("```console\n$ no-such-command\n```\n", "exited with 127"),
        ("<!-- exit: 2 -->\n```console\n$ true\n```\n", "exited with 0, not 2"),
        ("```console\nshown\n$ true\n```\n", "before the first command"),
        ("<!-- no-run -->\n```python\n1 / 0\n```\n", "needs a reason"),
        ("<!-- no-run: not for this one -->\n\ntext\n\n```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```fortran\nx\n```\n", "no way to run fortran"),
        ("```\nx\n```\n", "without a language"),
        ("```json\n{\n```\n", "not json"),
        ("```toml\na =\n```\n", "not toml"),
        ("```python\nx = 1\n", "never closed"),
        ("```sql\nselect 1\n```\n", "needs the mark"),
        ("```python\nprint('a')\n```\n<!-- output -->\n```text\nb\n```\n", "but the page shows"),
    ],
)
def test_a_page_that_does_not_do_what_it_says(text: str, said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    code, printed = run(page)
    assert code == 1
    assert said in printed


@pytest.mark.parametrize(
    ("shown", "printed", "good"),
    [
        ("a", "a\n", True),
        ("a", "a\nb\n", False),
        ("a\n...", "a\nb\nc\n", True),
        ("...\nc", "a\nb\nc\n", True),
        ("a\n...\nc", "a\nc\n", True),
        ("id ... ok", "id 01J ok\n", True),
        ("id ... ok", "id 01J\nok\n", False),
        ("a   b", "a b\n", True),
        ("a (b)", "a (b)\n", True),
        ("a.b", "axb\n", False),
        ("red", "\x1b[31mred\x1b[0m\n", True),
    ],
)
def test_how_output_is_compared(shown: str, printed: str, good: bool) -> None:
    assert matches(shown, printed) is good


def test_an_indented_block_loses_its_indent(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("1. item\n\n   ```text\n   a\n     b\n   ```\n", encoding="utf-8")
    assert [block.text for block in blocks_of(page)] == ["a\n  b\n"]


def test_a_script_without_prompts_is_one_command() -> None:
    assert split_commands("a\nb\n") == [("a\nb\n", "")]
