"""Whose turn it is, worked out by the server: who finds a run, and takes it, does both in one statement [R-1, D-4].

Each combination that waiting runs have is one step into an index, and so is the first run that is due of each: what is
due later, or of a generation that is not served, is never looked at [R-7]. The order is that of `ports.places`.
"""

from __future__ import annotations

import re

LINES = ("due_us IS NOT NULL AND token > 0", "due_us IS NOT NULL AND token = 0")
"""Runs that were claimed before, and new ones; each has an index, by pipeline, priority, generation and due time."""
PROBES = 64
"""How many tenants are looked at in turn at a time, whether or not they have a run that is due."""
NO_MORE = 2**63 - 1
"""A generation behind all others."""

_KIND = "pipeline, priority, generation"
_HELD = "SELECT pipeline FROM @pipeline_hold WHERE released_us = 0"
_SERVED = "unnest(%(pipelines)s, %(generations)s) v (pipeline, served)"


def _kinds(line: str, *, served: bool) -> str:
    """Every (pipeline, priority, generation) that runs of a line have, each found by one step into its index, and
    since when the first run of it is due: from there on there are no entries of runs that are not due any more."""
    first = f"SELECT {_KIND}, due_us FROM @run WHERE {line}"
    order = f"ORDER BY {_KIND}, due_us LIMIT 1"
    if served:
        start = f"SELECT f.*, v.served FROM {_SERVED} CROSS JOIN LATERAL ({first} AND pipeline = v.pipeline {order}) f"
        step = "pipeline = k.pipeline AND (priority, generation) > (k.priority, k.generation)"
    else:
        start = f"SELECT f.*, {NO_MORE} AS served FROM ({first} {order}) f"
        step = f"({_KIND}) > (k.pipeline, k.priority, k.generation)"
    return f"""
        WITH RECURSIVE kind ({_KIND}, due_us, served) AS (
            {start}
            UNION ALL SELECT s.*, k.served FROM kind k CROSS JOIN LATERAL ({first} AND {step} {order}) s
        )
    """


_FREE = f"k.generation <= k.served AND k.pipeline <> ALL (ARRAY({_HELD}))"
"""Which kinds may be due: of a generation that is served, and not held."""
_NOW = "(SELECT %(now)s::bigint)"
"""As a value that the planner does not know: whatever it were, whoever is due is read in order, from the index."""


_WIDTH = f"""
    (SELECT CASE WHEN %(wide)s THEN %(limit)s
        ELSE least(%(limit)s, %(limit)s / 4 + 8 + 2 * %(limit)s / greatest(count(*), 1)) END
    FROM kind k WHERE k.due_us <= {_NOW} AND {_FREE})
"""
"""How many runs of a kind are looked at: more than its share of the places; all that there could be, if `wide`."""


def _due(*, served: bool) -> str:
    cut = f", d.nth = {_WIDTH} AND d.nth < %(limit)s AS cut" if served else ""
    return " UNION ALL ".join(
        f"""
        ({_kinds(line, served=served)}
        SELECT {begun} AS begun, k.pipeline, k.priority, d.due_us, d.n, d.id, d.tenant{cut}
        FROM kind k CROSS JOIN LATERAL (
            SELECT due_us, n, id, tenant{", row_number() OVER (ORDER BY due_us, n) AS nth" if served else ""}
            FROM @run WHERE {line} AND pipeline = k.pipeline AND priority = k.priority
            AND generation = k.generation AND due_us >= k.due_us AND due_us <= {_NOW}
            ORDER BY due_us, n LIMIT {_WIDTH if served else "%(limit)s"}
        ) d WHERE k.due_us <= {_NOW} AND {_FREE})
        """
        for line, begun in zip(LINES, ("true", "false"), strict=True)
    )


def _next_due(*, served: bool) -> str:
    parts = " UNION ALL ".join(
        f"({_kinds(line, served=served)} SELECT min(k.due_us) AS due_us FROM kind k WHERE {_FREE})" for line in LINES
    )
    return f"SELECT min(due_us) FROM ({parts}) f"


DUE = _due(served=False)
NEXT_DUE, NEXT_DUE_SERVED = _next_due(served=False), _next_due(served=True)

FOUND = f"""
    SELECT begun, pipeline, priority, due_us, n, id, tenant, cut FROM (
        SELECT *, row_number() OVER (PARTITION BY begun ORDER BY due_us, n) AS age,
               row_number() OVER (PARTITION BY begun, priority ORDER BY rank, pipeline) AS place
        FROM (
            SELECT *, row_number() OVER (PARTITION BY begun, priority, pipeline ORDER BY due_us, n) AS rank
            FROM ({_due(served=True)}) d
        ) d
    ) d WHERE age <= %(limit)s OR place <= %(limit)s + cardinality(%(pipelines)s)
"""
"""Those that may get a place, by age or in turn; `cut`: behind it more of its kind may be due, which were not read."""

_NEXT_TENANT = """
    SELECT tenant, generation FROM @run WHERE due_us IS NOT NULL AND pipeline = t.pipeline
    AND (tenant, generation) > (t.tenant, t.generation) ORDER BY tenant, generation LIMIT 1
"""
PROBED = f"""
    WITH RECURSIVE served AS MATERIALIZED (
        SELECT * FROM unnest(%(names)s, %(theirs)s) WITH ORDINALITY v (pipeline, served, place)
    ), t (probe, place, pipeline, served, tenant, generation) AS (
        SELECT 0, place, pipeline, served, %(tenant)s::text COLLATE "C", %(generation)s FROM served
        WHERE place = 1 AND (SELECT count(*) FROM found) >= %(limit)s
        UNION ALL
        SELECT t.probe + 1, v.place, v.pipeline, v.served,
            coalesce(x.tenant, '' COLLATE "C"), coalesce(x.generation, -1)
        FROM t LEFT JOIN LATERAL ({_NEXT_TENANT}) x ON true
        JOIN served v ON v.place = t.place + CASE WHEN x.tenant IS NULL THEN 1 ELSE 0 END
        WHERE t.probe < {PROBES}
    )
    SELECT t.probe, t.pipeline, t.tenant, d.due_us, d.n, d.id, d.priority, d.token > 0 AS begun
    FROM t LEFT JOIN LATERAL (
        SELECT due_us, n, id, priority, token FROM @run WHERE due_us IS NOT NULL AND pipeline = t.pipeline
        AND tenant = t.tenant AND generation = t.generation AND due_us <= {_NOW}
        AND t.probe > 0 AND t.generation BETWEEN 0 AND t.served AND t.pipeline <> ALL (ARRAY({_HELD}))
        ORDER BY due_us, n LIMIT (SELECT (%(limit)s / 4 + 4) / count(*) + 1 FROM t WHERE generation >= 0)
    ) d ON true
"""
"""Tenants in turn, pipeline by pipeline, beginning behind one of the first; those with nothing due, too. None where
fewer are due than may be taken: then all of them were found, and their tenants with them."""

CANDIDATES = f"""
    WITH found AS MATERIALIZED ({FOUND}), probed AS MATERIALIZED ({PROBED}), given AS (
        SELECT begun, pipeline, tenant, priority, due_us, n, id, EXISTS (SELECT 1 FROM probed) AS asked,
            false AS turn, cut FROM found
        UNION ALL SELECT begun, pipeline, tenant, priority, due_us, n, id, true, true, false FROM probed
        WHERE n IS NOT NULL
    ), one AS (
        SELECT begun, pipeline, tenant, priority, due_us, n, id, bool_or(turn OR NOT asked) AS turn, bool_or(cut) AS cut
        FROM given GROUP BY begun, pipeline, tenant, priority, due_us, n, id
    ), ranked AS (
        SELECT o.*, row_number() OVER (ORDER BY o.due_us, o.n) AS spot,
            row_number() OVER (PARTITION BY o.begun, o.priority, o.pipeline ORDER BY o.due_us, o.n) AS rank,
            row_number() OVER (PARTITION BY o.turn, o.pipeline, o.tenant ORDER BY o.due_us, o.n) AS of_tenant,
            (v.place - 1 + v.count - CASE WHEN o.begun THEN %(begun)s ELSE %(new)s END %% v.count) %% v.count
                AS following
        FROM one o JOIN (
            SELECT u.*, count(*) OVER () FROM unnest(%(pipelines)s) WITH ORDINALITY u (pipeline, place)
        ) v ON v.pipeline = o.pipeline
    )
    SELECT array_agg(n ORDER BY spot), array_agg(due_us ORDER BY spot), array_agg(begun ORDER BY spot),
        array_agg(pipeline ORDER BY spot), array_agg(tenant ORDER BY spot), array_agg(cut ORDER BY spot),
        array_agg(spot ORDER BY priority DESC, rank, following) FILTER (WHERE begun),
        array_agg(spot ORDER BY priority DESC, rank, following) FILTER (WHERE NOT begun),
        array_agg(spot ORDER BY spot) FILTER (WHERE begun), array_agg(spot ORDER BY spot) FILTER (WHERE NOT begun),
        array_agg(spot ORDER BY of_tenant, (pipeline, tenant) <= (%(last_pipeline)s COLLATE "C", %(last_tenant)s
            COLLATE "C"), pipeline, tenant) FILTER (WHERE turn),
        (SELECT pipeline FROM probed ORDER BY probe DESC LIMIT 1),
        (SELECT tenant FROM probed ORDER BY probe DESC LIMIT 1)
    FROM ranked
"""
"""Those that may get a place, numbered by age; then, as such numbers, the orders in which they get places: begun ones
and new ones by priority, both by age, tenants in turn; and the last tenant that was looked at, if not all were."""

PATIENCE_MS = 500
"""So long one that picks waits for another; then it goes on beside it, and finds some of its runs taken."""

PARAMETERS = {
    "lock": "bigint",
    "now": "bigint",
    "limit": "bigint",
    "turn": "bigint",
    "pipelines": "text[]",
    "generations": "bigint[]",
    "begun": "bigint",
    "new": "bigint",
    "names": "text[]",
    "theirs": "bigint[]",
    "tenant": "text",
    "generation": "bigint",
    "last_pipeline": "text",
    "last_tenant": "text",
}
"""Of `choose`. `lock`: that of all who pick, who would find the same runs otherwise; 0: it is only asked. `begun` and
`new`: with which pipeline each class goes on. `names` and `theirs`: pipelines and generations in the order in which
their tenants are looked at, from behind `tenant` and `generation` on."""

_BODY = f"""
DECLARE
    p_wide boolean := false;
BEGIN
    IF p_lock <> 0 AND NOT pg_try_advisory_xact_lock(p_lock) THEN
        PERFORM set_config('lock_timeout', '{PATIENCE_MS}', true);
        BEGIN
            PERFORM pg_advisory_xact_lock(p_lock);
        EXCEPTION WHEN lock_not_available THEN NULL;
        END;
    END IF;
    LOOP DECLARE
    v_numbers bigint[]; v_times bigint[]; v_begun boolean[]; v_pipelines text[]; v_tenants text[]; v_cut boolean[];
    v_begun_line bigint[]; v_new_line bigint[]; v_begun_age bigint[]; v_new_age bigint[]; v_turns bigint[];
    v_probed_pipeline text; v_probed_tenant text;
    v_begun_at int := 1; v_new_at int := 1; v_begun_age_at int := 1; v_new_age_at int := 1; v_turn_at int := 1;
    v_begun_left int; v_new_left int; v_given boolean[]; v_at bigint; v_is_begun boolean; v_of_tenants boolean;
    v_more boolean := true; v_chosen bigint[] := '{{}}'; v_was_turn boolean[] := '{{}}'; v_reached boolean := false;
    BEGIN
    {{candidates}}
    INTO v_numbers, v_times, v_begun, v_pipelines, v_tenants, v_cut, v_begun_line, v_new_line, v_begun_age, v_new_age,
        v_turns, v_probed_pipeline, v_probed_tenant;
    IF v_numbers IS NULL THEN RETURN; END IF;
    v_begun_left := coalesce(cardinality(v_begun_line), 0);
    v_new_left := coalesce(cardinality(v_new_line), 0);
    v_given := array_fill(false, ARRAY[cardinality(v_numbers)]);
    FOR place IN p_turn .. p_turn + p_limit - 1 LOOP
        EXIT WHEN v_begun_left + v_new_left = 0;
        v_is_begun := place % 4 <> 3;
        IF v_is_begun AND v_begun_left = 0 THEN v_is_begun := false;
        ELSIF NOT v_is_begun AND v_new_left = 0 THEN v_is_begun := true; END IF;
        v_at := NULL;
        v_of_tenants := place % 16 / 4 = 2;
        IF v_of_tenants THEN
            WHILE v_given[v_turns[v_turn_at]] LOOP v_turn_at := v_turn_at + 1; END LOOP;
            v_at := v_turns[v_turn_at];
        END IF;
        IF v_at IS NULL THEN
            v_more := v_more AND NOT v_of_tenants;
            v_of_tenants := false;
            IF place % 16 >= 12 AND v_is_begun THEN
                WHILE v_given[v_begun_age[v_begun_age_at]] LOOP v_begun_age_at := v_begun_age_at + 1; END LOOP;
                v_at := v_begun_age[v_begun_age_at];
            ELSIF place % 16 >= 12 THEN
                WHILE v_given[v_new_age[v_new_age_at]] LOOP v_new_age_at := v_new_age_at + 1; END LOOP;
                v_at := v_new_age[v_new_age_at];
            ELSIF v_is_begun THEN
                WHILE v_given[v_begun_line[v_begun_at]] LOOP v_begun_at := v_begun_at + 1; END LOOP;
                v_at := v_begun_line[v_begun_at];
            ELSE
                WHILE v_given[v_new_line[v_new_at]] LOOP v_new_at := v_new_at + 1; END LOOP;
                v_at := v_new_line[v_new_at];
            END IF;
        END IF;
        v_given[v_at] := true;
        v_reached := v_reached OR v_cut[v_at];
        IF v_begun[v_at] THEN v_begun_left := v_begun_left - 1; ELSE v_new_left := v_new_left - 1; END IF;
        v_chosen := v_chosen || v_at;
        v_was_turn := v_was_turn || v_of_tenants;
    END LOOP;
    IF v_reached AND NOT p_wide THEN  -- of its kind others might have come before those that were looked at
        p_wide := true;
        CONTINUE;
    END IF;
    RETURN QUERY SELECT v_numbers[c.spot], v_times[c.spot], c.place,
        CASE WHEN c.was_turn THEN v_pipelines[c.spot] END, CASE WHEN c.was_turn THEN v_tenants[c.spot] END,
        CASE WHEN NOT v_more THEN v_probed_pipeline END, CASE WHEN NOT v_more THEN v_probed_tenant END
        FROM unnest(v_chosen, v_was_turn) WITH ORDINALITY c (spot, was_turn, place);
    RETURN;
    END; END LOOP;
END
"""


def in_function(sql: str) -> str:
    """A statement as it stands in the body of `choose`."""
    return re.sub(r"%\((\w+)\)s", r"p_\1", sql).replace("%%", "%")


_SETTINGS = " ".join(
    f"SET {name} = {value}"
    for name, value in {
        "search_path": "pg_catalog",
        "plan_cache_mode": "force_generic_plan",
        "jit": "off",
        "enable_indexscan": "on",
        "enable_bitmapscan": "off",
        "enable_seqscan": "off",
    }.items()
)
"""Whatever the session's are, a pooler's for instance. Planners may take it that few are due, and then read all of them
and sort them: here the first of many are always read from the head of an index, in order."""

FUNCTIONS = (
    f"""
    CREATE FUNCTION @choose({", ".join(f"p_{name} {kind}" for name, kind in PARAMETERS.items())})
    RETURNS TABLE (c_n bigint, c_due_us bigint, c_place bigint, c_pipeline text, c_tenant text, c_to_pipeline text,
        c_to_tenant text)
    LANGUAGE plpgsql ROWS 100 {_SETTINGS} AS $body${_BODY.replace("{candidates}", in_function(CANDIDATES))}$body$
    """,
)
"""`choose`: who gets places, in their order; whose turn it was, for those who got a place of tenants; and up to which
tenant was looked, where these had no run left."""

CHOSEN = f"@choose({', '.join(f'%({name})s' for name in PARAMETERS)})"
