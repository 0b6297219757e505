package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/microvmd/microvm/packaging"
)

// Where things go in the host, as on any host.
const (
	programDir = "/usr/local/bin"
	unitDir    = "/etc/systemd/system"
	guestAgent = stateDir + "/guest/guestd"
	envFile    = "/etc/microvm/microvmd.env"
	adminKey   = stateDir + "/admin.key"
)

// daemonFlags are the emulated host's own: its network lets in nobody but the outer machine's loopback, and the Firecracker
// that package registries have is out of support.
const daemonFlags = "MICROVMD_FLAGS=--listen 0.0.0.0:7080 --allow-unsupported-firecracker\n"

// programs are what a host runs; the guest agent is an artifact for the guests and no program of the host.
var programs = []struct{ name, dst string }{
	{"microvmd", programDir + "/microvmd"}, {"microvm", programDir + "/microvm"}, {"guestd", guestAgent},
}

func (m *Machine) checkPrograms() error {
	var missing []string
	for _, p := range programs {
		if info, err := os.Stat(filepath.Join(m.cfg.Programs, p.name)); err != nil || !info.Mode().IsRegular() {
			missing = append(missing, p.name)
		}
	}
	if missing != nil {
		return fmt.Errorf("find programs in %q: no %s (build them with make, name their directory with --programs, or start with --bare)", m.cfg.Programs, strings.Join(missing, ", "))
	}
	return nil
}

// hostFiles are the small files that make a host ours.
func hostFiles() ([]File, error) {
	units, err := fs.Glob(packaging.Units, "*")
	if err != nil {
		return nil, err
	}
	files := []File{{Data: []byte(daemonFlags), Dst: envFile, Mode: 0o644}}
	for _, u := range units {
		text, err := packaging.Units.ReadFile(u)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Data: text, Dst: unitDir + "/" + u, Mode: 0o644})
	}
	return files, nil
}

// seed writes what the host finds before its systemd starts: keys, name, units.
func (m *Machine) seed(ctx context.Context, box *os.File) error {
	files, err := hostFiles()
	if err != nil {
		return err
	}
	public := map[string][]byte{}
	for _, s := range []struct {
		name, dst string
		mode      fs.FileMode
	}{{"id_ed25519.pub", "/root/.ssh/authorized_keys", 0o600}, {"host_ed25519", "/etc/ssh/ssh_host_ed25519_key", 0o600}, {"host_ed25519.pub", "/etc/ssh/ssh_host_ed25519_key.pub", 0o644}} {
		text, err := os.ReadFile(m.path(s.name))
		if err != nil {
			return fmt.Errorf("read key: %w", err)
		}
		public[s.name] = text
		files = append(files, File{Data: text, Dst: s.dst, Mode: s.mode})
	}
	files = append(files, File{Data: []byte(m.cfg.Name + "\n"), Dst: "/etc/hostname", Mode: 0o644})
	known := append([]byte(m.cfg.Name+" "), public["host_ed25519.pub"]...)
	if err := writeFile(m.path("known_hosts"), known, 0o600); err != nil {
		return err
	}
	out, err := m.hash(ctx, files)
	if err != nil {
		return err
	}
	now := time.Now().Truncate(time.Second)
	for i := range out {
		out[i].MTime = now.Unix()
	}
	return writeSeed(box, out, now)
}

// artifacts are being found while the machine boots.
type artifacts struct {
	cancel context.CancelFunc
	done   chan struct{}
	files  []File // set before done is closed
	err    error  // set before done is closed
}

func (m *Machine) artifacts(ctx context.Context) *artifacts {
	ctx, cancel := context.WithCancel(ctx)
	a := &artifacts{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		if m.cfg.Files != nil && !m.cfg.Bare {
			a.files, a.err = m.cfg.Files(ctx)
		}
	}()
	return a
}

func (a *artifacts) wait() ([]File, error) {
	<-a.done
	if a.err != nil {
		return nil, fmt.Errorf("find artifacts: %w", a.err)
	}
	return a.files, nil
}

func (a *artifacts) end() {
	a.cancel()
	<-a.done
}

// install brings programs, artifacts and units into the running host and the daemon to its feet.
func (m *Machine) install(ctx context.Context, p *progress, a *artifacts, out *Started) error {
	files, err := hostFiles()
	if err != nil {
		return err
	}
	for _, pr := range programs {
		files = append(files, File{Src: filepath.Join(m.cfg.Programs, pr.name), Dst: pr.dst, Mode: 0o755})
	}
	var more []File
	if err := p.step("waiting for the artifacts", func() (err error) {
		more, err = a.wait()
		return err
	}); err != nil {
		return err
	}
	files = append(files, more...)
	if err := p.step("putting programs and artifacts into the host", func() (err error) {
		out.Pushed, err = m.Push(ctx, files)
		return err
	}); err != nil {
		return err
	}
	r, err := m.running()
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", r.Settings.APIPort)
	have, err := ReadEndpoint(m.cfg.Dir, m.cfg.Name)
	if len(out.Pushed.Changed) == 0 && err == nil && have.URL == url && healthy(ctx, url) {
		out.Endpoint = have
		return nil
	}
	action := "start" // a daemon that runs the same files as before is left alone
	if len(out.Pushed.Changed) > 0 {
		action = "restart"
	}
	err = p.step("starting microvmd, waiting for "+url+"/v1/health", func() error {
		// reset-failed also begins the count of restarts anew, which waitHealth looks at.
		if _, err := m.Run(ctx, "sh", "-ec", "systemctl daemon-reload; systemctl reset-failed microvmd.service 2>/dev/null || true; systemctl "+action+" microvmd.service"); err != nil {
			return err
		}
		return m.waitHealth(ctx, url)
	})
	if err != nil {
		journal, jerr := m.Run(ctx, "journalctl", "-u", "microvmd", "-n", "20", "--no-pager", "-o", "cat")
		return errors.Join(fmt.Errorf("start microvmd: %w\nthe end of its journal:\n%s", err, journal), jerr)
	}
	key, err := m.Run(ctx, "cat", adminKey)
	if err != nil {
		return fmt.Errorf("read admin key: %w", err)
	}
	out.Endpoint = Endpoint{URL: url, APIKey: string(bytes.TrimSpace(key))}
	return writeJSON(m.path(endpointFile), out.Endpoint)
}

// A daemon that ended this often since its start does not come up by waiting. Asked about every restartsEvery polls.
const (
	restartsLimit = 2
	restartsEvery = 30
)

func (m *Machine) waitHealth(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, healthWithin, fmt.Errorf("no answer within %.0f s", healthWithin.Seconds()))
	defer cancel()
	for try := 1; !healthy(ctx, url); try++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(startPoll):
		}
		if !m.alive() {
			return ErrGone
		}
		if try%restartsEvery == 0 {
			text, err := m.Run(ctx, "systemctl", "show", "-P", "NRestarts", "microvmd.service")
			if n, nerr := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil && nerr == nil && n >= restartsLimit {
				return fmt.Errorf("it ends again and again (%d restarts)", n)
			}
		}
	}
	return nil
}

func healthy(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/health", nil)
	if err != nil {
		return false
	}
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = reply.Body.Close()
	return reply.StatusCode == http.StatusOK
}
