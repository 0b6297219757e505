package machine

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
)

// keeperArgument makes the test's own program a keeper, as "microvm machine keeper" is.
const keeperArgument = "act-as-keeper"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == keeperArgument {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		syscall.CloseOnExec(3)
		if err := Keep(ctx, os.Args[2], os.NewFile(3, "ready")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if filepath.Base(os.Args[0]) == "microvmd" {
		actAsDaemon()
	}
	os.Exit(m.Run())
}

// actAsDaemon is the least that Start wants of a daemon: a key, and a health route.
func actAsDaemon() {
	if err := os.WriteFile(adminKey, []byte("mvk_of_the_test\n"), 0o600); err != nil {
		panic(err)
	}
	http.HandleFunc("GET /v1/health", func(http.ResponseWriter, *http.Request) {})
	panic(http.ListenAndServe("0.0.0.0:7080", nil))
}
