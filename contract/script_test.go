package contract

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs the real command line against the real daemon. The scripts
// of cmd/microvm say more about its words and flags, against a fake API.
func TestScripts(t *testing.T) {
	d := start(t)
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", "script"),
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", programs+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("SOCKET", "unix://"+d.socket)
			env.Setenv("NODE", d.url())
			env.Setenv("KEY", d.key)
			env.Setenv("MICROVM_URL", "unix://"+d.socket)
			env.Setenv("TZ", "UTC")
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, ".cache"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": scriptCode},
	})
}

// code 3 microvm run ..: the program ends with this code.
func scriptCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	if coder, ok := err.(interface{ ExitCode() int }); ok {
		got = coder.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
