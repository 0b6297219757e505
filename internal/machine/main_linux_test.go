package machine

import (
	"context"
	"fmt"
	"os"
	"os/signal"
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
	os.Exit(m.Run())
}
