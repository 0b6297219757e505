package sandbox_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/secret"
	"github.com/microvmd/microvm/internal/testkit"
)

func newKey(t *testing.T) *secret.Key {
	t.Helper()
	key, err := secret.LoadKey(filepath.Join(t.TempDir(), secret.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// token is a secret with all that JSON escapes.
const token = "s3cr3t\"\\<&>é\x01t0k3n"

// forms are the ways in which a secret may lie somewhere.
func forms(secret string) map[string]string {
	all := map[string]string{"raw": secret, "hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret)))}
	plain, _ := json.Marshal(secret)
	all["JSON"] = strings.Trim(string(plain), `"`)
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(secret)
	all["JSON without HTML"] = strings.Trim(strings.TrimSpace(text.String()), `"`)
	// Base64 of a longer text has the secret's at one of three places in its
	// groups of three; the groups at its ends are its neighbours' too.
	for shift := range 3 {
		for name, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			text := encoding.EncodeToString([]byte(strings.Repeat("x", shift) + secret))
			all[fmt.Sprint(name, shift)] = text[(shift*4+2)/3 : len(text)-2]
		}
	}
	return all
}

// found names the forms of token in data.
func found(data []byte) (in []string) {
	for name, form := range forms(token) {
		if bytes.Contains(data, []byte(form)) {
			in = append(in, name)
		}
	}
	return in
}

func TestTheFormsOfASecretAreFound(t *testing.T) {
	around := "before " + token + " after"
	for range 3 {
		around = "x" + around
		quoted, err := json.Marshal(around)
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"raw": around, "hex": hex.EncodeToString([]byte(around)), "json": string(quoted), "base64": base64.StdEncoding.EncodeToString([]byte(around)),
			"base64 url": base64.URLEncoding.EncodeToString([]byte(around)),
		} {
			if len(found([]byte(text))) == 0 {
				t.Errorf("%s is not found: %q", name, text)
			}
		}
	}
}

var withEnv = sandbox.Spec{Image: "python", Idle: -1, Env: secret.Env{"TOKEN": token, "EMPTY": ""}}

// envOf is what an execution in a sandbox would get.
func envOf(t *testing.T, m *sandbox.Manager, id string) (secret.Env, error) {
	t.Helper()
	session, err := m.Use(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Release()
	return session.Env()
}

// TestAnEnvOutlivesTheDaemon, and nothing but its sandbox.
func TestAnEnvOutlivesTheDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		sb, err := l.Create(t.Context(), withEnv)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1, Env: secret.Env{}})
		if err != nil || plain.Env != "" {
			t.Fatalf("an empty one is sealed: %v", err)
		}
		for range 3 {
			env, err := envOf(t, l.Manager, sb.ID)
			if err != nil || !maps.Equal(env, withEnv.Env) {
				t.Errorf("env is %q: %v", map[string]string(env), err)
			}
			env["TOKEN"] = "changed" // it is the caller's own
			if env, err := envOf(t, l.Manager, plain.ID); err != nil || env != nil {
				t.Errorf("env of one without is %q: %v", map[string]string(env), err)
			}
			l.kill()
			l = w.recovered()
		}
		gone, err := l.Delete(t.Context(), sb.ID)
		if err != nil || gone.Env != "" {
			t.Errorf("after the end: %q %v", gone.Env, err)
		}
		if row, err := w.store.Sandbox(t.Context(), sb.ID); err != nil || row.Env != "" {
			t.Errorf("in the store after the end: %q %v", row.Env, err)
		}
		w.drained(l)
	})
}

// TestALostKeyLosesEnvsOnly: sandboxes live on, and who wants their env is told
// which file is missing. Those made from then on are whole.
func TestALostKeyLosesEnvsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		var log bytes.Buffer
		l := w.recovered()
		sb, err := l.Create(t.Context(), withEnv)
		if err != nil {
			t.Fatal(err)
		}
		l.kill()
		old := w.key
		w.key, w.logger = newKey(t), slog.New(slog.NewTextHandler(&log, nil))
		l = w.recovered()
		if text := log.String(); !strings.Contains(text, sb.ID) || !strings.Contains(text, secret.KeyFile) {
			t.Errorf("the log says nothing of the lost env: %s", text)
		}
		env, err := envOf(t, l.Manager, sb.ID)
		if f := fault.From(err); env != nil || f.Code != fault.InternalError || !strings.Contains(f.Message, secret.KeyFile) ||
			!strings.Contains(f.Message, "put that file back") || !strings.Contains(f.Message, sb.ID) || len(found([]byte(err.Error()))) > 0 {
			t.Errorf("%v, %v", env, err)
		}
		if got, err := l.Touch(t.Context(), sb.ID); err != nil || got.State != sandbox.Running {
			t.Errorf("%+v %v", got, err)
		}
		other, err := l.Create(t.Context(), withEnv)
		if err != nil {
			t.Fatal(err)
		}
		if env, err := envOf(t, l.Manager, other.ID); err != nil || len(env) != 2 {
			t.Errorf("of one made since: %v", err)
		}
		if err := l.Close(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		w.key = old
		l = w.recovered()
		if env, err := envOf(t, l.Manager, sb.ID); err != nil || env["TOKEN"] != token {
			t.Errorf("with the key put back: %v", err)
		}
		w.drained(l)
	})
}

// swapped gives each live sandbox the env of another, as whoever writes to the
// store could.
type swapped struct{ sandbox.Store }

func (s swapped) LiveSandboxes(ctx context.Context) ([]sandbox.Sandbox, error) {
	live, err := s.Store.LiveSandboxes(ctx)
	if err == nil && len(live) == 2 {
		live[0].Env, live[1].Env = live[1].Env, live[0].Env
	}
	return live, err
}

func TestAnEnvOfAnotherSandboxIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		var ids []string
		for range 2 {
			sb, err := l.Create(t.Context(), withEnv)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, sb.ID)
		}
		l.kill()
		l = w.start(uptime)
		l.store.Store = swapped{w.store}
		if err := l.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if env, err := envOf(t, l.Manager, id); env != nil || !fault.Is(err, fault.InternalError) {
				t.Errorf("%v %v", env, err)
			}
		}
		w.drained(l)
	})
}

// recorded keeps what every agent is sent.
func recorded(to *bytes.Buffer, mu *sync.Mutex) testkit.AgentFactory {
	inner := testkit.ConfiguredAgent()
	return func(plan sandbox.Plan) (http.RoundTripper, func(), error) {
		transport, stop, err := inner(plan)
		mu.Lock()
		fmt.Fprintf(to, "%+v\n", plan)
		mu.Unlock()
		return recorder{transport, to, mu}, stop, err
	}
}

type recorder struct {
	http.RoundTripper
	to *bytes.Buffer
	mu *sync.Mutex
}

func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		var err error
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
	}
	r.mu.Lock()
	fmt.Fprintf(r.to, "%s %s %v %s\n", request.Method, request.URL, request.Header, body)
	r.mu.Unlock()
	return r.RoundTripper.RoundTrip(request)
}

// TestAnEnvIsNowhereInTheClear: not in what a guest or a plan, and with it a
// template, gets at its start; not in the log; not in what callers of the manager
// get; and not in the files of the store, while the sandbox lives and after.
func TestAnEnvIsNowhereInTheClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent, shown bytes.Buffer
		var log lockedBuffer
		w := newWorld(t, templated())
		w.host = testkit.NewHost(recorded(&sent, &mu))
		w.logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		show := func(values ...any) {
			for _, value := range values {
				text, err := json.Marshal(value)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&shown, "%v %+v %#v %s\n", value, value, value, text)
			}
		}
		l := w.recovered()
		var last sandbox.Sandbox
		for _, boot := range []sandbox.Boot{sandbox.BootCold, sandbox.BootSnapshot, sandbox.BootSnapshot} {
			sb, err := l.Create(t.Context(), withEnv)
			settled()
			if err != nil || sb.Boot != boot {
				t.Fatalf("%s %v", sb.Boot, err)
			}
			last = sb
			got, err := l.Get(t.Context(), sb.ID)
			show(sb, got, withEnv, &withEnv, err)
			if env, err := envOf(t, l.Manager, sb.ID); err != nil || env["TOKEN"] != token {
				t.Fatal(err)
			}
		}
		page, err := l.List(t.Context(), sandbox.Query{Limit: 10})
		show(page, err)
		_, err = l.Create(t.Context(), sandbox.Spec{Image: "python", Env: secret.Env{"TOKEN=" + token: ""}})
		show(err, err.Error())
		store := files(t, w.path)
		if !bytes.Contains(store, []byte(last.ID)) {
			t.Error("the files of the store do not even have the sandbox")
		}
		gone, err := l.Delete(t.Context(), last.ID)
		show(gone, err)
		w.drained(l)
		mu.Lock()
		defer mu.Unlock()
		for where, data := range map[string][]byte{
			"a guest or plan": sent.Bytes(), "the log": log.Bytes(), "an answer": shown.Bytes(), "the store before the end": store, "the store after the end": files(t, w.path),
		} {
			if len(data) == 0 {
				t.Errorf("%s is empty: nothing was looked at", where)
			}
			if in := found(data); len(in) > 0 {
				t.Errorf("%s has the secret: %v", where, in)
			}
		}
	})
}

// files is all that the store has on the disk.
func files(t *testing.T, path string) (all []byte) {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) < 3 { // with its WAL and the index of that
		t.Fatal(names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
	}
	return all
}

// lockedBuffer is a bytes.Buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}
