"""Notes of nobody: what stores of tables have in common. `@` stands before the name of a table of ours."""

from __future__ import annotations

from perdure.ports.notes import NoteKind

_NOBODY = "NOT EXISTS (SELECT 1 FROM @run r WHERE r.n = t.{}) LIMIT ?"

ASTRAY: dict[NoteKind, str] = {
    "mutex": "SELECT t.name || ' of ' || t.resource || ' of tenant ' || t.tenant FROM @mutex t "
    f"WHERE {_NOBODY.format('run')}",
    "wait": f"SELECT t.target FROM @waiter t WHERE {_NOBODY.format('waiter')}",
    "place": f"SELECT t.limit_id || ' ' || t.key FROM @permit t WHERE {_NOBODY.format('run')}",
    "line": f"SELECT t.limit_id || ' ' || t.key FROM @queue t WHERE {_NOBODY.format('run')}",
    "room": f"SELECT t.limit_id || ' ' || t.key FROM @entered t WHERE {_NOBODY.format('run')}",
    "count": "SELECT b.limit_id || ' ' || b.key FROM @bound b WHERE b.held <> (SELECT count(*) FROM @permit p "
    "WHERE p.limit_id = b.limit_id AND p.key = b.key AND p.kind <> 'rate') LIMIT ?",
}
"""What is found of each kind, by a statement with the greatest number of rows."""

FORGET = (
    "DELETE FROM @mutex WHERE NOT EXISTS (SELECT 1 FROM @run WHERE n = run)",
    "DELETE FROM @waiter WHERE NOT EXISTS (SELECT 1 FROM @run WHERE n = waiter AND awaiting IS NOT NULL)",
)
"""The rest is mended by `Store.grant_permits`."""
