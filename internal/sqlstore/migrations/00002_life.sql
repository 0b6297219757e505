-- A TTL's end can move (extend), and is kept in two clocks: expires_ms in the wall clock, for people, and deadline_ms in
-- the host's uptime of the boot host_boot, which no step of the wall clock touches. idle_ms 0 is "never".

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN expires_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN deadline_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN host_boot TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN idle_ms BIGINT NOT NULL DEFAULT 0;
UPDATE sandboxes SET expires_ms = created_ms + ttl_ms;
ALTER TABLE sandboxes DROP COLUMN ttl_ms;
ALTER TABLE executions ADD COLUMN deadline_ms BIGINT NOT NULL DEFAULT 0;
