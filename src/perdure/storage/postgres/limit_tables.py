"""Tables of limits, and the functions that take places and pass them on [R-11, R-16].

`permit` has who has a place, or a turn of a rate; `queue` who stands in line; `bound` how many places there are and are
taken. A run that is in one of the first two is marked in its row, so that a run that never met a limit costs nothing.
Whoever frees a place gives it to the run that has waited longest, in the same transaction, and says so to whoever
listens. Rates go by the server's clock, whatever the workers' say.
"""

from __future__ import annotations

from perdure.storage.postgres.telling import TOLD

QUEUE_MS = 1000
"""How long a group waits for the groups of others that want the same lock of ours."""

TABLES = (
    """
    CREATE TABLE @bound (
        limit_id text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        kind text NOT NULL,
        size bigint NOT NULL,
        held bigint NOT NULL DEFAULT 0,
        next_us bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (limit_id, key)
    ) WITH (fillfactor = 50)
    """,
    # keep: while a row is written, which places its run does not give back.
    """
    CREATE TABLE @permit (
        run bigint NOT NULL,
        limit_id text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        kind text NOT NULL,
        keep boolean NOT NULL DEFAULT false,
        turn_us bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (run, limit_id, key)
    )
    """,
    """
    CREATE TABLE @queue (
        n bigint GENERATED ALWAYS AS IDENTITY,
        limit_id text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        run bigint PRIMARY KEY,
        since_us bigint NOT NULL,
        keep boolean NOT NULL DEFAULT false
    )
    """,
    "CREATE INDEX queue_place ON @queue (limit_id, key, n)",
)


def _function(head: str, body: str, declare: str = "") -> str:
    return f"CREATE FUNCTION @{head} LANGUAGE plpgsql AS $body$ {declare} BEGIN {body} END $body$"


_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

FUNCTIONS = (
    # Locks of ours, in this order; the first, if any, together with others. Whoever has them has them for one group,
    # which is no reason to take another group apart: that waits for longer than for what a stranger has. What goes
    # alone does not.
    _function(
        "queue_for(together bigint, numbers bigint[]) RETURNS void",
        f"""
        IF usual::interval BETWEEN interval '20ms' AND interval '{QUEUE_MS}ms' THEN
            PERFORM set_config('lock_timeout', '{QUEUE_MS}ms', true);
        END IF;
        PERFORM pg_advisory_xact_lock_shared(together);
        FOREACH number IN ARRAY numbers LOOP
            PERFORM pg_advisory_xact_lock(number);
        END LOOP;
        PERFORM set_config('lock_timeout', usual, true);
        """,
        "DECLARE number bigint; usual text := current_setting('lock_timeout');",
    ),
    # The locks of places, in one order whoever wants them: those named, and those that runs have or wait for, whose
    # rows the caller has locked. Whoever has the lock of all limits to itself keeps everybody from them.
    _function(
        "lock_places(all_limits bigint, runs bigint[], l text[], k text[]) RETURNS void",
        """
        PERFORM @queue_for(all_limits, ARRAY(
            SELECT DISTINCT hashtextextended(p.l || E'\\x01' || p.k, all_limits) FROM (
                SELECT * FROM unnest(l, k) w (l, k)
                UNION ALL SELECT limit_id, key FROM @permit WHERE run = ANY (runs)
                UNION ALL SELECT limit_id, key FROM @queue WHERE run = ANY (runs)
            ) p ORDER BY 1));
        """,
    ),
    # One free place for whoever may start and has waited longest; whoever somebody is writing about is not waited for.
    _function(
        "grant_place(l text, k text) RETURNS boolean",
        f"""
        SELECT b.kind INTO what FROM @bound b WHERE b.limit_id = l AND b.key = k AND b.held < b.size;
        IF NOT FOUND THEN RETURN false; END IF;
        SELECT q.run, q.since_us INTO who, since FROM @queue q JOIN @run r ON r.n = q.run
        WHERE q.limit_id = l AND q.key = k AND r.status = 'ready' AND r.worker IS NULL
          AND NOT EXISTS (SELECT 1 FROM @pipeline_hold h WHERE h.pipeline = r.pipeline AND h.released_us = 0)
        ORDER BY q.n LIMIT 1 FOR NO KEY UPDATE OF r SKIP LOCKED;
        IF NOT FOUND THEN RETURN false; END IF;
        INSERT INTO @permit (run, limit_id, key, kind) VALUES (who, l, k, what);
        UPDATE @run SET due_us = since, reason = '' WHERE n = who;
        DELETE FROM @queue WHERE run = who;
        {TOLD}
        RETURN true;
        """,
        "DECLARE who bigint; since bigint; what text;",
    ),
    _function(
        "permit_taken() RETURNS trigger",
        """
        IF NEW.kind <> 'rate' THEN
            UPDATE @bound SET held = held + 1 WHERE limit_id = NEW.limit_id AND key = NEW.key;
        END IF;
        UPDATE @run SET limited = true WHERE n = NEW.run AND NOT limited;
        RETURN NULL;
        """,
    ),
    "CREATE TRIGGER permit_taken AFTER INSERT ON @permit FOR EACH ROW EXECUTE FUNCTION @permit_taken()",
    _function(
        "permit_freed() RETURNS trigger",
        """
        UPDATE @bound SET held = held - 1 WHERE limit_id = OLD.limit_id AND key = OLD.key;
        PERFORM @grant_place(OLD.limit_id, OLD.key);
        RETURN NULL;
        """,
    ),
    "CREATE TRIGGER permit_freed AFTER DELETE ON @permit FOR EACH ROW WHEN (OLD.kind <> 'rate') "
    "EXECUTE FUNCTION @permit_freed()",
    # Every write of a whole row says limited = false; other writes leave it alone.
    _function(
        "limited_written() RETURNS trigger",
        """
        DELETE FROM @queue WHERE run = NEW.n AND (NEW.ended_us IS NOT NULL OR NOT keep);
        DELETE FROM @permit WHERE run = NEW.n AND (NEW.ended_us IS NOT NULL OR (NEW.worker IS NULL AND NOT keep
            AND (kind = 'concurrency' OR (kind = 'in_flight' AND NEW.token = 0))));
        UPDATE @run SET limited = true WHERE n = NEW.n
            AND (EXISTS (SELECT 1 FROM @permit WHERE run = NEW.n) OR EXISTS (SELECT 1 FROM @queue WHERE run = NEW.n));
        RETURN NULL;
        """,
    ),
    "CREATE TRIGGER limited_written AFTER UPDATE OF limited ON @run FOR EACH ROW "
    "WHEN (OLD.limited AND NOT NEW.limited) EXECUTE FUNCTION @limited_written()",
    _function(
        "limited_removed() RETURNS trigger",
        "DELETE FROM @queue WHERE run = OLD.n; DELETE FROM @permit WHERE run = OLD.n; RETURN NULL;",
    ),
    "CREATE TRIGGER limited_removed AFTER DELETE ON @run FOR EACH ROW WHEN (OLD.limited) "
    "EXECUTE FUNCTION @limited_removed()",
    _function(
        "set_bound(l text, k text, kd text, sz bigint) RETURNS void",
        """
        INSERT INTO @bound AS b (limit_id, key, kind, size) VALUES (l, k, kd, sz)
        ON CONFLICT (limit_id, key) DO UPDATE SET kind = excluded.kind, size = excluded.size WHERE b.size <> sz;
        """,
    ),
    _function(
        "place_is_free(who bigint, l text, k text, kd text, sz bigint, now_us bigint) RETURNS boolean",
        """
        SELECT p.turn_us INTO own FROM @permit p WHERE p.run = who AND p.limit_id = l AND p.key = k;
        IF FOUND THEN RETURN own <= now_us; END IF;
        RETURN coalesce((SELECT CASE WHEN kd = 'rate' THEN b.next_us <= now_us ELSE b.held < sz END
                         FROM @bound b WHERE b.limit_id = l AND b.key = k), true);
        """,
        "DECLARE own bigint;",
    ),
    # For each append what it needs, all of it or nothing; the first place that is not free is named. An append that
    # will be refused for another reason takes nothing; `prev` 0: it has been accepted already.
    _function(
        """
        take_places(who bigint[], first bigint[], prev bigint[], hash bytea[], tok bigint[], many bigint[],
                    l text[], k text[], kd text[], sz bigint[], alive boolean)
        RETURNS TABLE (o_run bigint, o_limit text, o_key text)
        """,
        """
        FOR i IN 1 .. coalesce(array_length(who, 1), 0) LOOP
            base := upto; upto := upto + many[i];
            CONTINUE WHEN prev[i] > 0 AND (
                tok[i] > 0 AND NOT alive OR
                (SELECT j.hash FROM @journal j WHERE j.run = who[i] AND j.first_seq = prev[i]) IS DISTINCT FROM hash[i]
                OR EXISTS (SELECT 1 FROM @journal j WHERE j.run = who[i] AND j.first_seq >= first[i])
                OR (tok[i] > 0 AND tok[i] < (SELECT r.token FROM @run r WHERE r.n = who[i])));
            o_run := NULL;
            FOR x IN base + 1 .. upto LOOP
                IF NOT @place_is_free(who[i], l[x], k[x], kd[x], sz[x], now_us) THEN
                    o_run := who[i]; o_limit := l[x]; o_key := k[x];
                    RETURN NEXT;
                    EXIT;
                END IF;
            END LOOP;
            CONTINUE WHEN o_run IS NOT NULL
                OR EXISTS (SELECT 1 FROM @run r WHERE r.n = who[i] AND r.ended_us IS NOT NULL);
            FOR x IN base + 1 .. upto LOOP
                PERFORM @set_bound(l[x], k[x], kd[x], sz[x]);
                IF kd[x] <> 'rate' THEN
                    INSERT INTO @permit (run, limit_id, key, kind) VALUES (who[i], l[x], k[x], kd[x])
                    ON CONFLICT DO NOTHING;
                ELSE
                    DELETE FROM @permit p WHERE p.run = who[i] AND p.limit_id = l[x] AND p.key = k[x];
                    IF NOT FOUND THEN
                        UPDATE @bound SET next_us = now_us + sz[x] WHERE limit_id = l[x] AND key = k[x];
                    END IF;
                END IF;
            END LOOP;
            DELETE FROM @permit p WHERE p.run = who[i] AND p.kind = 'concurrency' AND NOT EXISTS (
                SELECT 1 FROM generate_series(base + 1, upto) g WHERE l[g] = p.limit_id AND k[g] = p.key);
        END LOOP;
        """,
        f"DECLARE base bigint; upto bigint := 0; now_us bigint := {_NOW};",
    ),
    # Before the row of a run is written that rests for want of a place: what it does not give back.
    _function(
        "keep_places(who bigint, l text[], k text[]) RETURNS void",
        """
        UPDATE @permit p SET keep = true FROM unnest(l, k) w (l, k)
        WHERE p.run = who AND p.limit_id = w.l AND p.key = w.k;
        UPDATE @queue q SET keep = true FROM unnest(l, k) w (l, k)
        WHERE q.run = who AND q.limit_id = w.l AND q.key = w.k;
        """,
    ),
    # After it was written: take what is free, up to the first place that is not; stand in line for that, and keep none
    # that comes after it, so that nobody waits in a circle.
    _function(
        "stand_in_line(who bigint, l text[], k text[], kd text[], sz bigint[], at bigint) RETURNS void",
        """
        IF EXISTS (SELECT 1 FROM @run r WHERE r.n = who AND r.ended_us IS NOT NULL) THEN RETURN; END IF;
        UPDATE @permit SET keep = false WHERE run = who AND keep;
        FOR x IN 1 .. array_length(l, 1) LOOP
            PERFORM @set_bound(l[x], k[x], kd[x], sz[x]);
            SELECT p.turn_us INTO own FROM @permit p WHERE p.run = who AND p.limit_id = l[x] AND p.key = k[x];
            mine := FOUND;
            IF kd[x] = 'rate' THEN
                IF NOT mine THEN
                    SELECT greatest(now_us, b.next_us) INTO own FROM @bound b WHERE b.limit_id = l[x] AND b.key = k[x];
                    UPDATE @bound SET next_us = own + sz[x] WHERE limit_id = l[x] AND key = k[x];
                    INSERT INTO @permit (run, limit_id, key, kind, turn_us) VALUES (who, l[x], k[x], kd[x], own);
                END IF;
                due := greatest(due, at + own - now_us);
            ELSIF NOT mine AND @place_is_free(who, l[x], k[x], kd[x], sz[x], now_us) THEN
                INSERT INTO @permit (run, limit_id, key, kind) VALUES (who, l[x], k[x], kd[x]);
            ELSIF NOT mine THEN
                UPDATE @queue SET keep = false WHERE run = who AND limit_id = l[x] AND key = k[x];
                IF NOT FOUND THEN
                    DELETE FROM @queue WHERE run = who;
                    INSERT INTO @queue (limit_id, key, run, since_us) VALUES (l[x], k[x], who, at);
                    UPDATE @run SET limited = true WHERE n = who AND NOT limited;
                END IF;
                DELETE FROM @permit p USING unnest(l[x + 1:], k[x + 1:]) after (l, k)
                WHERE p.run = who AND p.limit_id = after.l AND p.key = after.k AND p.kind <> 'rate';
                RETURN;
            END IF;
        END LOOP;
        DELETE FROM @queue WHERE run = who;
        UPDATE @run SET due_us = least(coalesce(due_us, due), due), reason = CASE WHEN due = at THEN '' ELSE reason END
        WHERE n = who;
        """,
        f"DECLARE own bigint; mine boolean; due bigint := at; now_us bigint := {_NOW};",
    ),
)
