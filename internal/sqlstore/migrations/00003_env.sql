-- env is a sandbox's environment, sealed by the daemon's secret key; '' is none, and a stopped sandbox has none. What a
-- caller gave is nowhere in this file in the clear. tty and stdin_open are how an execution was started; pid is its number in the
-- guest, once it has ended.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN env TEXT NOT NULL DEFAULT '';
ALTER TABLE executions ADD COLUMN tty BIGINT NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN stdin_open BIGINT NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN pid BIGINT NOT NULL DEFAULT 0;
