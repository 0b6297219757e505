package contract

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/testkit/pgtest"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestDaemonOnPostgres: a daemon whose database is a server's lives through the
// server's death and its own, shares its database with nobody, and shows the
// password nowhere.
func TestDaemonOnPostgres(t *testing.T) {
	server := pgtest.Start(t)
	where := server.Database(t)
	t.Setenv("MICROVM_DATABASE", where)
	d := start(t)
	client := d.remote()
	sb := create(t, client, microvm.SandboxCreate{Image: "python", Name: ptr("kept")})

	other := t.TempDir()
	out, err := d.command("--state-dir", filepath.Join(other, "state"), "--socket", filepath.Join(other, "s")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is used by another daemon") {
		t.Errorf("a second daemon on one database: %v: %s", err, out)
	}
	hides(t, "refusal", string(out))

	// A program ends while the server is away.
	exe, err := client.Executions.Create(t.Context(), sb.ID, microvm.ExecutionCreate{
		Cmd: "sh", Args: []string{"-c", "touch begun; while [ ! -e end ]; do sleep 0.01; done; echo done; exit 7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	work := d.workdir(t)
	eventually(t, "the program runs", func() bool { _, err := os.Stat(filepath.Join(work, "begun")); return err == nil })
	server.Kill(t)
	if err := os.WriteFile(filepath.Join(work, "end"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, do := range []func() error{
		func() error { _, err := client.Sandboxes.Retrieve(t.Context(), sb.ID); return err },
		func() error {
			_, err := d.local().Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python"})
			return err
		},
	} {
		err := do()
		var refused *microvm.Error
		if !errors.As(err, &refused) || refused.Status != 503 || refused.Code != "queue_unreachable" || refused.RetryAfter <= 0 {
			t.Errorf("without a server: %v", err)
		}
		hides(t, "reply", fmt.Sprint(err))
	}
	server.Restart(t)
	eventually(t, "the end is stored", func() bool {
		got, err := client.Executions.Retrieve(t.Context(), sb.ID, exe.ID)
		return err == nil && got.Status == "exited" && *got.ExitCode == 7 && got.Stdout == "done\n"
	})

	for _, name := range []string{"cmdline", "status"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", d.cmd.Process.Pid, name))
		if err != nil {
			t.Fatal(err)
		}
		hides(t, name, string(text))
	}
	d.kill(t)
	hides(t, "log", d.log.text())
	d.run(t)
	got, err := d.local().Sandboxes.Retrieve(t.Context(), sb.ID)
	if err != nil || *got.Name != "kept" || got.State != "stopped" {
		t.Errorf("after a kill: %+v, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "microvm.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file as well: %v", err)
	}
}

// workdir is where the one sandbox's programs work.
func (d *daemon) workdir(t *testing.T) (dir string) {
	t.Helper()
	eventually(t, "a program works", func() bool {
		pids := d.programs()
		if len(pids) == 0 {
			return false
		}
		var err error
		dir, err = os.Readlink(fmt.Sprintf("/proc/%d/cwd", pids[0]))
		return err == nil
	})
	return dir
}

// hides wants no part of the database's password in a text.
func hides(t *testing.T, what, text string) {
	t.Helper()
	for _, secret := range []string{pgtest.Password, url.QueryEscape(pgtest.Password), "s3cr"} {
		if strings.Contains(text, secret) {
			t.Errorf("the password is in the %s: %s", what, text)
		}
	}
}
