-- Times are milliseconds since 1970 UTC, 0 is "not yet". JSON and booleans are TEXT and BIGINT, so that SQLite
-- and PostgreSQL take the same text. Statuses have no CHECK: the nouns own their tables of legal moves.

-- +goose Up
CREATE TABLE sandboxes (
    id          TEXT   NOT NULL PRIMARY KEY,
    image       TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    tags        TEXT   NOT NULL, -- JSON object
    vcpus       BIGINT NOT NULL,
    mem_mib     BIGINT NOT NULL,
    ttl_ms      BIGINT NOT NULL,
    state       TEXT   NOT NULL,
    stop_reason TEXT   NOT NULL,
    reason      TEXT   NOT NULL,
    boot        TEXT   NOT NULL,
    slot        BIGINT NOT NULL,
    created_ms  BIGINT NOT NULL,
    stopped_ms  BIGINT NOT NULL
);

-- A name is free again when its sandbox has stopped.
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (name) WHERE name <> '' AND state <> 'stopped';
CREATE INDEX sandboxes_name ON sandboxes (name, id);
CREATE INDEX sandboxes_state ON sandboxes (state, id);

-- The tags again, one a row, to filter by.
CREATE TABLE sandbox_tags (
    sandbox   TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    tag_key   TEXT NOT NULL,
    tag_value TEXT NOT NULL,
    PRIMARY KEY (sandbox, tag_key)
);

CREATE INDEX sandbox_tags_value ON sandbox_tags (tag_key, tag_value, sandbox);

CREATE TABLE executions (
    id           TEXT   NOT NULL PRIMARY KEY,
    sandbox      TEXT   NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    cmd          TEXT   NOT NULL,
    args         TEXT   NOT NULL, -- JSON array
    cwd          TEXT   NOT NULL,
    run_as       TEXT   NOT NULL,
    timeout_ms   BIGINT NOT NULL,
    status       TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    exit_code    BIGINT, -- NULL where there was none
    signal       TEXT   NOT NULL,
    oom_killed   BIGINT NOT NULL,
    stdout_bytes BIGINT NOT NULL,
    stderr_bytes BIGINT NOT NULL,
    created_ms   BIGINT NOT NULL,
    finished_ms  BIGINT NOT NULL
);

CREATE INDEX executions_sandbox ON executions (sandbox, id);
CREATE INDEX executions_running ON executions (id) WHERE status = 'running';

CREATE TABLE api_keys (
    id         TEXT   NOT NULL PRIMARY KEY,
    name       TEXT   NOT NULL,
    hash       TEXT   NOT NULL UNIQUE, -- SHA-256 of the key, hex; the key itself is nowhere
    created_ms BIGINT NOT NULL
);
