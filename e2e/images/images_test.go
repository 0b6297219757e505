// Package images proves on booted microVMs that a root tree which somebody else
// made becomes an image that boots, and that what runs keeps the image it has.
package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) { harness.Main(m) }

// programs are what the tests' tree has of this host: enough to look at itself.
var programs = []string{"sh", "cat", "stat", "sha256sum", "id", "ls", "env", "mknod"}

// library is a file that ldd names.
var library = regexp.MustCompile(`(?:=> )?(/\S+) \(0x`)

// tree is a root tree as debootstrap makes them, only smaller: programs of this
// host with their libraries, accounts, and one of each kind of file.
type tree struct {
	t     *testing.T
	out   *tar.Writer
	taken map[string]bool
}

// blob is a file that no page cache holds by chance.
func blob(word string) []byte { return bytes.Repeat([]byte(word), 3<<20/len(word)) }

func sum(content []byte) string {
	hash := sha256.Sum256(content)
	return hex.EncodeToString(hash[:])
}

// rootTree is the tar of a tree whose blob is of a word.
func rootTree(t *testing.T, word string) []byte {
	t.Helper()
	var b bytes.Buffer
	r := &tree{t: t, out: tar.NewWriter(&b), taken: map[string]bool{}}
	r.add(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	for _, dir := range []string{"etc/", "dev/", "proc/", "usr/", "usr/bin/", "usr/lib/"} {
		r.add(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	for link, target := range map[string]string{"bin": "usr/bin", "lib": "usr/lib"} {
		r.add(tar.Header{Name: link, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, nil)
	}
	r.add(tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\ndev:x:1500:1600::/home/dev:/bin/sh\n"))
	r.add(tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3}, nil)
	for _, name := range programs {
		r.program(name)
	}
	r.add(tar.Header{Name: "blob", Mode: 0o640, Uid: 70_000, Gid: 80_000, ModTime: time.Unix(1_700_000_000, 0)}, blob(word))
	r.add(tar.Header{Name: "other-name", Typeflag: tar.TypeLink, Linkname: "blob"}, nil)
	r.add(tar.Header{Name: "far", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("./", 60) + "blob", Mode: 0o777}, nil)
	if err := r.out.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (r *tree) add(header tar.Header, content []byte) {
	r.t.Helper()
	header.Size, header.Format = int64(len(content)), tar.FormatPAX
	if header.Typeflag == 0 {
		header.Typeflag = tar.TypeReg
	}
	if err := r.out.WriteHeader(&header); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.out.Write(content); err != nil {
		r.t.Fatal(err)
	}
}

// program adds a program of this host and the libraries that it wants.
func (r *tree) program(name string) {
	r.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.file(path, "usr/bin/"+name)
	out, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil {
		r.t.Fatalf("ldd %s: %v: %s", path, err, out)
	}
	for _, match := range library.FindAllStringSubmatch(string(out), -1) {
		where := strings.TrimPrefix(match[1], "/")
		if rest, is := strings.CutPrefix(where, "lib/"); is {
			where = "usr/lib/" + rest
		}
		r.file(match[1], where)
	}
}

func (r *tree) file(from, to string) {
	r.t.Helper()
	if r.taken[to] {
		return
	}
	r.taken[to] = true
	content, err := os.ReadFile(from)
	if err != nil {
		r.t.Fatal(err)
	}
	r.add(tar.Header{Name: to, Mode: 0o755}, content)
}

func bring(t *testing.T, d *harness.Daemon, spec microvm.ImageImport, tree []byte) *microvm.Image {
	t.Helper()
	began := time.Now()
	image, err := d.Client.Images.Import(t.Context(), spec, bytes.NewReader(tree))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a tree of %d bytes became %d bytes in %s", len(tree), image.SizeBytes, time.Since(began).Round(time.Millisecond))
	return image
}

// shell runs a script that must end with 0, and returns what it printed.
func shell(t *testing.T, d *harness.Daemon, sandbox, script string) string {
	t.Helper()
	exe := d.Exec(t, sandbox, "sh", "-ec", script)
	if exe.ExitCode == nil || *exe.ExitCode != 0 {
		t.Fatalf("%s: %+v", script, exe)
	}
	return exe.Stdout
}

func refused(t *testing.T, err error, code microvm.ErrorCode) {
	t.Helper()
	var e *microvm.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

// TestAnImportedTreeBoots: cold and from a template, with what the tree had, and a
// root that can be written and is another sandbox's no less new.
func TestAnImportedTreeBoots(t *testing.T) {
	d := harness.Start(t, "import", "--templates", "1")
	bring(t, d, microvm.ImageImport{Name: "mine", User: "dev", Env: map[string]string{"FROM_IMAGE": "yes"}}, rootTree(t, "first"))
	look := `stat -c '%a %u %g %h %Y' /blob; sha256sum < /other-name; sha256sum < /far; id -u; pwd; echo $FROM_IMAGE; ls -ld /workspace > /dev/null; test -c /dev/null && echo device`
	want := "640 70000 80000 2 1700000000\n"
	for _, boot := range []string{"cold", "snapshot"} {
		sb := d.Create(t, microvm.SandboxCreate{Image: "mine"})
		if sb.Boot == nil || string(*sb.Boot) != boot {
			t.Errorf("booted %v, want %s", sb.Boot, boot)
		}
		root := microvm.ExecutionCreate{Cmd: "sh", Args: []string{"-ec", look}, User: ptr("root")}
		exe, err := d.Client.Executions.Run(t.Context(), sb.ID, root)
		digest := sum(blob("first")) + "  -\n"
		if wants := want + digest + digest + "0\n/workspace\nyes\ndevice\n"; err != nil || exe.Stdout != wants {
			t.Errorf("%s: %v\n%s\nwant\n%s", boot, err, exe.Stdout, wants)
		}
		if got := shell(t, d, sb.ID, "id -u; id -g; echo mine > file; cat file"); got != "1500\n1600\nmine\n" {
			t.Errorf("as its user: %q", got)
		}
		if boot == "cold" {
			d.AwaitTemplate(t)
			continue
		}
		_, err = d.Client.Images.Delete(t.Context(), "mine")
		refused(t, err, microvm.ErrorCodeImageInUse)
	}
	list, err := d.Client.Sandboxes.List(t.Context(), microvm.ListSandboxesParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list.Data {
		if _, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Client.Images.Delete(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"images/mine", "templates/*", "images/.*"} {
		if found, err := filepath.Glob(filepath.Join(d.StateDir, left)); err != nil || len(found) > 0 {
			t.Errorf("left %v, %v", found, err)
		}
	}
}

// TestAReplacedImageStaysWithWhoRuns: what a sandbox reads for the first time after
// its image was replaced, over a restart of the daemon too, is what it was made of.
func TestAReplacedImageStaysWithWhoRuns(t *testing.T) {
	d := harness.Start(t, "replace", "--templates", "2")
	first := bring(t, d, microvm.ImageImport{Name: "mine"}, rootTree(t, "first"))
	old := d.Create(t, microvm.SandboxCreate{Image: "mine"})
	d.AwaitTemplate(t)
	second := bring(t, d, microvm.ImageImport{Name: "mine", Replace: true}, rootTree(t, "second"))
	if second.Digest == first.Digest {
		t.Fatal("another tree has the same digest")
	}
	young := d.Create(t, microvm.SandboxCreate{Image: "mine"})
	d.Stop(t)
	d.Run(t)
	for id, word := range map[string]string{old.ID: "first", young.ID: "second"} {
		if got := shell(t, d, id, "sha256sum < /blob"); got != sum(blob(word))+"  -\n" {
			t.Errorf("the sandbox of the %s image reads %s", word, got)
		}
	}
	if files, err := filepath.Glob(filepath.Join(d.StateDir, "images/mine/rootfs-*")); err != nil || len(files) != 1 {
		t.Errorf("the image's files are %v, %v", files, err)
	}
	_, err := d.Client.Images.Delete(t.Context(), "mine")
	refused(t, err, microvm.ErrorCodeImageInUse)
}

func ptr[T any](v T) *T { return &v }
