-- What a store of schema 3 holds. Never changes; see TestMigrateFromEachSchema.
INSERT INTO sandboxes (id, image, name, tags, vcpus, mem_mib, expires_ms, deadline_ms, host_boot, idle_ms, state, stop_reason, reason, boot, slot, created_ms, stopped_ms, env) VALUES
    ('sb_01K00000000000000000000001', 'python', 'old', '{"team":"core"}', 2, 512, 1750000900000, 960000, 'b0', 120000, 'running', '', '', 'cold', 1, 1750000000000, 0, 'v1.sealed'),
    ('sb_01K00000000000000000000002', 'base', 'old', '{}', 1, 256, 1750000060001, 0, '', 0, 'stopped', 'expired', 'ttl', 'cold', 2, 1750000000001, 1750000060001, '');
INSERT INTO sandbox_tags (sandbox, tag_key, tag_value) VALUES ('sb_01K00000000000000000000001', 'team', 'core');
INSERT INTO executions (id, sandbox, cmd, args, cwd, run_as, timeout_ms, deadline_ms, status, reason, exit_code, signal, oom_killed, stdout_bytes, stderr_bytes, created_ms, finished_ms, tty, stdin_open) VALUES
    ('exe_01K00000000000000000000003', 'sb_01K00000000000000000000001', 'sleep', '["60"]', '', '', 300000, 400000, 'running', '', NULL, '', 0, 0, 0, 1750000000002, 0, 1, 1),
    ('exe_01K00000000000000000000004', 'sb_01K00000000000000000000002', 'true', '[]', '/tmp', 'root', 300000, 0, 'exited', '', 0, '', 1, 5, 6, 1750000000003, 1750000000004, 0, 0);
INSERT INTO api_keys (id, name, hash, created_ms) VALUES
    ('key_1', 'admin', 'ff00000000000000000000000000000000000000000000000000000000000000', 1750000000000);
