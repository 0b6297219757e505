package executions

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// forms are the ways in which a secret may be written down.
func forms(secret string) map[string][]byte {
	quoted, _ := json.Marshal(secret)
	return map[string][]byte{
		"raw": []byte(secret), "hex": []byte(hex.EncodeToString([]byte(secret))), "JSON": bytes.Trim(quoted, `"`),
		"base64": []byte(base64.RawStdEncoding.EncodeToString([]byte(secret))[:len(secret)]),
	}
}

// findIn looks for a secret in every file of a tree, and returns where it is.
func findIn(t *testing.T, root string, secret string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		// In pieces that overlap: a scratch disk is large, and mostly a hole.
		const piece, overlap = 1 << 20, 256
		buf := make([]byte, piece)
		for at := int64(0); ; at += piece - overlap {
			n, _ := file.ReadAt(buf, at)
			for form, text := range forms(secret) {
				if bytes.Contains(buf[:n], text) {
					found = append(found, form+" in "+path)
				}
			}
			if n < piece {
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestSecretsDoNotStay is claim 12: after the executions that had them, what a
// caller gave as env is in no process of the guest, on no disk of it, in no
// reply, no log, and not in the store. While a program has it, it is found: so
// the search is one that finds.
func TestSecretsDoNotStay(t *testing.T) {
	d := harness.Start(t, "secret")
	const ofSandbox, ofExecution = `sandbox-"s\ecret"-4711-äö`, `execution-"s\ecret"-0815-äö`
	sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1), Env: map[string]string{"TOKEN": ofSandbox, "BOTH": "sandbox"}})

	spec := sh(`printf '%s\n' "$TOKEN" "$ONCE" "$BOTH"`)
	spec.Env = map[string]string{"ONCE": ofExecution, "BOTH": "execution"}
	if exe := run(t, d, sb.ID, spec); exe.Stdout != ofSandbox+"\n"+ofExecution+"\nexecution\n" {
		t.Fatalf("what the program saw: %q", exe.Stdout)
	}
	if exe := run(t, d, sb.ID, sh(`printf '%s\n' "$TOKEN" "$ONCE" "$BOTH"`)); exe.Stdout != ofSandbox+"\n\nsandbox\n" {
		t.Fatalf("what the next program saw: %q", exe.Stdout)
	}
	// The secrets of this one are on nobody's stdout.
	const quiet = "quiet-4242-nobody-prints-it"
	spec = sh("exec sleep 600")
	spec.Env = map[string]string{"QUIET": quiet}
	holder := start(t, d, sb.ID, spec)

	// In the guest, as root. What looks has it in no file and no argument: it comes by stdin.
	look := func(secret string) string {
		spec := microvm.ExecutionCreate{
			Cmd: "sh", User: harness.Ptr("root"), Stdin: &secret, Env: map[string]string{"TOKEN": "", "BOTH": ""},
			Args: []string{"-c", `read -r secret; for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
  case $f in /proc/$$/*|/proc/self/*) continue;; esac
  tr '\0' '\n' <"$f" 2>/dev/null | grep -qF -- "$secret" && echo "$f"
done
printf '%s\n' "$secret" | grep -rlF -f - /workspace /home /root /tmp /var /etc /run /scratch 2>/dev/null
exit 0`},
		}
		exe := run(t, d, sb.ID, spec)
		if ending(exe) != "exited 000" {
			t.Fatalf("look: %+v", exe)
		}
		return exe.Stdout
	}
	if found := look(quiet); !strings.HasPrefix(found, "/proc/") {
		t.Fatalf("the search does not find what is there: %q", found)
	}
	if _, err := d.Client.Executions.Cancel(t.Context(), sb.ID, holder.ID, microvm.ExecutionCancel{}); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{quiet, ofSandbox, ofExecution} {
		if found := look(secret); found != "" {
			t.Errorf("%q is left in the guest: %s", secret, found)
		}
	}
	d.Exec(t, sb.ID, "sync")

	// On the host: replies, the daemon's log, the store, and the disks.
	var replies bytes.Buffer
	shown, err := d.Client.Sandboxes.Retrieve(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.Client.Executions.List(t.Context(), sb.ID, microvm.ListExecutionsParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range []any{shown, list} {
		if err := json.NewEncoder(&replies).Encode(reply); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.ReadFile(d.LogPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{quiet, ofSandbox, ofExecution} {
		for form, text := range forms(secret) {
			if bytes.Contains(replies.Bytes(), text) {
				t.Errorf("%s (%s) is in a reply", secret, form)
			}
			if bytes.Contains(log, text) {
				t.Errorf("%s (%s) is in the log", secret, form)
			}
		}
		for _, place := range findIn(t, d.StateDir, secret) {
			// What a program printed is its output, and kept as such.
			if secret == quiet || !strings.Contains(place, "/executions/") {
				t.Errorf("%s is left: %s", secret, place)
			}
		}
	}
	// The search finds on disks, too.
	const written = "written-to-a-file-1848"
	if _, err := d.Client.Files.Write(t.Context(), sb.ID, "note", []byte(written)); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, sb.ID, "sync")
	if found := findIn(t, d.StateDir, written); len(found) == 0 {
		t.Error("the search does not find what is on a disk")
	}
}
