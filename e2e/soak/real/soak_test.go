package real

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	"github.com/microvmd/microvm/e2e/soak"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestSoak kills daemon and VMMs while operations run. harness.Start takes the
// census before, and compares after everything was deleted.
func TestSoak(t *testing.T) {
	const slots = 6
	d := harness.Start(t, "soak", "--slots", strconv.Itoa(slots), "--vcpus", "64", "--reconcile-every", "2s", "--templates", "2")
	warm(t, d)
	kills := soak.Setting(t, "MICROVM_SOAK_KILLS", 20)
	work := soak.Work{
		Driver: newNode(d), Seed: uint64(soak.Setting(t, "MICROVM_SOAK_SEED", rand.IntN(1<<31))),
		Operations: soak.Setting(t, "MICROVM_SOAK_OPERATIONS", 150), DaemonKills: kills * 3 / 5, VMMKills: kills - kills*3/5,
		Workers: 4, Most: slots - 1,
		Pace: soak.Pace{
			Lines: 20, Line: 500 * time.Millisecond, Look: 2 * time.Second,
			Short: 20 * time.Second, Shorts: 60 * time.Second, Timeout: 5 * time.Second, Calm: 6 * time.Second,
		},
	}
	t.Logf("repeat with MICROVM_SOAK_SEED=%d", work.Seed)
	began := time.Now()
	history, err := work.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations, %d kills and %d looks at the end in %s", work.Operations, kills, len(history)-work.Operations-kills, time.Since(began).Round(time.Second))
	for _, line := range soak.Tell(history) {
		t.Log(line)
	}
	for _, wrong := range soak.Check(history, soak.Node{Slots: slots, Grace: time.Minute, Loud: 1 << 20}) {
		t.Error(wrong)
	}
}

// warm makes a create a restore: most of the soak's are to be.
func warm(t *testing.T, d *harness.Daemon) {
	t.Helper()
	for range 20 {
		sb, err := d.Client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if sb.Boot != nil && *sb.Boot == microvm.SandboxBootSnapshot {
			return
		}
	}
	t.Fatal("no template is made")
}
