// Package languages proves on booted microVMs that each language's image does
// what its users do first: a program of several files is compiled, where the
// language does, and runs; the usual test runner tells what passed and failed;
// and what was made ahead in the image is not made again.
package languages

import (
	"embed"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) { harness.Main(m) }

// Programs without a dependency, one folder per language.
//
//go:embed all:testdata
var programs embed.FS

// memory is enough for a linker, in MiB.
const memory = 1024

// box is a sandbox of an image with the files of a language in it.
type box struct {
	t  *testing.T
	d  *harness.Daemon
	id string
}

// open makes a sandbox and puts a language's files into its working directory.
func open(t *testing.T, image, folder string) box {
	t.Helper()
	d := harness.Start(t, folder)
	sb := d.Create(t, microvm.SandboxCreate{
		Image: image, MemMib: harness.Ptr(memory), TTLSeconds: harness.Ptr(3600), IdleSeconds: harness.Ptr(-1),
	})
	root := path.Join("testdata", folder)
	err := fs.WalkDir(programs, root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := programs.ReadFile(name)
		if err != nil {
			return err
		}
		// A folder with a go.mod of its own would not be embedded.
		target := strings.TrimSuffix(strings.TrimPrefix(name, root+"/"), ".txt")
		_, err = d.Client.Files.Write(t.Context(), sb.ID, target, content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return box{t: t, d: d, id: sb.ID}
}

// at is the same sandbox in a subtest.
func (b box) at(t *testing.T) box { return box{t: t, d: b.d, id: b.id} }

// run runs a program to its own end, and wants this exit code.
func (b box) run(code int, cmd string, args ...string) *microvm.Execution {
	b.t.Helper()
	return b.exec(code, microvm.ExecutionCreate{Cmd: cmd, Args: args})
}

func (b box) exec(code int, spec microvm.ExecutionCreate) *microvm.Execution {
	b.t.Helper()
	exe, err := b.d.Client.Executions.Run(b.t.Context(), b.id, spec)
	if err != nil {
		b.t.Fatalf("%s %q: %v", spec.Cmd, spec.Args, err)
	}
	if exe.ExitCode == nil || *exe.ExitCode != code {
		b.t.Fatalf("%s %q: %s, want exit code %d\nstdout %s\nstderr %s", spec.Cmd, spec.Args, told(exe), code, exe.Stdout, exe.Stderr)
	}
	return exe
}

func told(exe *microvm.Execution) string {
	if err := exe.Err(); err != nil {
		return err.Error()
	}
	return string(exe.Status)
}

// prints runs a program that prints exactly this, and nothing on standard error.
func (b box) prints(want string, cmd string, args ...string) {
	b.t.Helper()
	if exe := b.run(0, cmd, args...); exe.Stdout != want+"\n" || exe.Stderr != "" {
		b.t.Errorf("%s %q: stdout %q, stderr %q, want %q", cmd, args, exe.Stdout, exe.Stderr, want)
	}
}

// version checks what the image says of itself against the program.
func (b box) version(cmd string, args ...string) {
	b.t.Helper()
	images, err := b.d.Client.Images.List(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	sb, err := b.d.Client.Sandboxes.Retrieve(b.t.Context(), b.id)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, image := range images.Data {
		if image.ID != sb.Image {
			continue
		}
		printed := b.run(0, cmd, args...).Stdout
		words := regexp.MustCompile(`[^ v\n]*[0-9]+\.[0-9]+\.[0-9]+`).FindAllString(printed, -1)
		if image.LanguageVersion == nil || !slices.ContainsFunc(words, func(word string) bool { return strings.TrimPrefix(word, "go") == *image.LanguageVersion }) {
			b.t.Errorf("%s %q prints %q, the image says %+v", cmd, args, printed, image)
		}
		return
	}
	b.t.Errorf("no image %s", sb.Image)
}

// contains wants each of the texts in what a program printed.
func contains(t *testing.T, printed string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(printed, text) {
			t.Errorf("no %q in %s", text, printed)
		}
	}
}

const (
	question = "3 4 + 2 *"
	answer   = "3 4 + 2 * = 14"
)

func TestPython(t *testing.T) {
	b := open(t, "python", "python")
	t.Run("version", func(t *testing.T) { b.at(t).version("python3", "--version") })
	t.Run("program", func(t *testing.T) { b.at(t).prints(answer, "python3", "main.py", question) })
	t.Run("unittest", func(t *testing.T) {
		b := b.at(t)
		contains(t, b.run(0, "python3", "-m", "unittest", "test_good").Stderr, "Ran 1 test", "OK")
		contains(t, b.run(1, "python3", "-m", "unittest", "discover").Stderr, "Ran 2 tests", "FAILED (failures=1)", "AssertionError: 3 != 4")
	})
	// Root may write where the library is: had anything to be compiled, it would be there afterwards.
	t.Run("compiled library", func(t *testing.T) {
		b := b.at(t)
		root := func(cmd string, args ...string) string {
			return b.exec(0, microvm.ExecutionCreate{Cmd: cmd, Args: args, User: harness.Ptr("root")}).Stdout
		}
		list := func() string {
			return root("find", "/usr/lib/python3", "/usr/lib/python3.13", "-name", "*.pyc", "-newermt", "1970-01-01", "-printf", "%p %T@ %s\n")
		}
		before := list()
		contains(t, before, "/json/__pycache__/decoder.cpython-", "/pip/__pycache__/__init__.cpython-")
		const imports = "import argparse, asyncio, ctypes, dataclasses, email.mime.text, http.server, json, logging, multiprocessing, " +
			"pathlib, sqlite3, ssl, subprocess, sys, tempfile, unittest, urllib.request, venv, xml.etree.ElementTree, zipfile, pip\n" +
			"print(sys.dont_write_bytecode, json.__cached__)"
		contains(t, root("python3", "-c", imports), "False /usr/lib/python3")
		if after := list(); after != before {
			t.Errorf("the library was compiled:\n%s", difference(before, after))
		}
	})
}

func TestNode(t *testing.T) {
	b := open(t, "node", "node")
	t.Run("version", func(t *testing.T) { b.at(t).version("node", "--version") })
	t.Run("program", func(t *testing.T) { b.at(t).prints(answer, "node", "main.js", question) })
	t.Run("node --test", func(t *testing.T) {
		b := b.at(t)
		contains(t, b.run(0, "node", "good.test.js").Stdout, "# pass 1", "# fail 0")
		contains(t, b.run(1, "node", "--test").Stdout, "# pass 1", "# fail 1", "3 !== 4")
	})
	t.Run("npm", func(t *testing.T) {
		b := b.at(t)
		if _, err := b.d.Client.Files.Write(t.Context(), b.id, "package.json", []byte(`{"scripts":{"test":"node good.test.js"}}`)); err != nil {
			t.Fatal(err)
		}
		contains(t, b.run(0, "npm", "test").Stdout, "# pass 1")
	})
}

func TestTypeScript(t *testing.T) {
	b := open(t, "node", "typescript")
	t.Run("program", func(t *testing.T) { b.at(t).prints(answer, "node", "main.ts", question) })
	t.Run("a shell of a user's", func(t *testing.T) {
		b.at(t).prints(answer, "env", "-i", "bash", "-lc", "node main.ts '"+question+"'")
		b.at(t).prints(answer, "sudo", "node", "main.ts", question)
	})
	t.Run("await outside of functions", func(t *testing.T) { b.at(t).prints("awaited 42", "node", "await.ts") })
	t.Run("ES modules", func(t *testing.T) { b.at(t).prints("doubled 42 file:", "node", "esm/main.ts") })
	t.Run("errors name the line", func(t *testing.T) {
		contains(t, b.at(t).run(1, "node", "throws.ts").Stderr, "/workspace/throws.ts:5", "thrown in line 5")
	})
	t.Run("node --test", func(t *testing.T) {
		contains(t, b.at(t).run(1, "node", "--test", "good.test.ts", "bad.test.ts").Stdout, "# pass 1", "# fail 1", "3 !== 4")
	})
}

func TestGo(t *testing.T) {
	b := open(t, "go", "go")
	t.Run("version", func(t *testing.T) { b.at(t).version("go", "version") })
	// In the order in which a user comes to them: the first build is also the one after which Go cleans its cache.
	t.Run("the first go run compiles nothing but the program", func(t *testing.T) {
		exe := b.at(t).run(0, "go", "run", "-x", ".", question)
		if exe.Stdout != answer+"\n" {
			t.Errorf("printed %q", exe.Stdout)
		}
		worked(t, exe.Stderr, "compile", "calc/rpn", "main")
	})
	t.Run("nor does the second, of what the first had no use for", func(t *testing.T) {
		exe := b.at(t).run(0, "go", "run", "-x", "./server")
		if exe.Stdout != "served 42\n" {
			t.Errorf("printed %q", exe.Stdout)
		}
		worked(t, exe.Stderr, "compile", "main")
	})
	t.Run("program", func(t *testing.T) {
		b := b.at(t)
		b.run(0, "go", "build", ".")
		b.prints(answer, "./calc", question)
		contains(t, b.run(3, "./calc", "1 2").Stderr, `2 values are left of "1 2"`)
	})
	t.Run("go vet", func(t *testing.T) {
		worked(t, b.at(t).run(0, "go", "vet", "-x", "./...").Stderr, "vet", "calc", "calc/rpn", "calc/server")
	})
	t.Run("go test", func(t *testing.T) {
		b := b.at(t)
		exe := b.run(0, "go", "test", "-x", "-run", "Good", "./rpn")
		contains(t, exe.Stdout, "ok  \tcalc/rpn")
		worked(t, exe.Stderr, "compile", "calc/rpn", "main")
		worked(t, exe.Stderr, "vet", "calc/rpn")
		contains(t, b.run(1, "go", "test", "-v", "./rpn").Stdout, "--- PASS: TestGood", "--- FAIL: TestBad", "rpn_test.go:13: got 3")
	})
}

// What `go -x` prints for a package that it compiles or vets.
var works = map[string]*regexp.Regexp{
	"compile": regexp.MustCompile(`/compile .*-p (\S+)`),
	"vet":     regexp.MustCompile(`"ImportPath": "(.*)"`), // of the vet.cfg before it
}

// worked wants that a tool was run for these packages and for no other.
func worked(t *testing.T, trace, tool string, want ...string) {
	t.Helper()
	var got []string
	for _, match := range works[tool].FindAllStringSubmatch(trace, -1) {
		got = append(got, match[1])
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("%s ran for %q, want %q", tool, got, want)
	}
}

func TestRust(t *testing.T) {
	b := open(t, "rust", "rust")
	t.Run("version", func(t *testing.T) { b.at(t).version("rustc", "--version") })
	t.Run("the first cargo run compiles nothing but the program", func(t *testing.T) {
		exe := b.at(t).run(0, "cargo", "run", "--", question)
		if exe.Stdout != answer+"\n" {
			t.Errorf("printed %q", exe.Stdout)
		}
		if compiled := regexp.MustCompile(`Compiling \S+`).FindAllString(exe.Stderr, -1); !slices.Equal(compiled, []string{"Compiling calc"}) {
			t.Errorf("compiled %q: %s", compiled, exe.Stderr)
		}
	})
	t.Run("program", func(t *testing.T) {
		contains(t, b.at(t).run(3, "target/debug/calc", "1 2").Stderr, `2 values are left of "1 2"`)
	})
	t.Run("the crates that the image brings need no network", func(t *testing.T) {
		b := b.at(t)
		b.run(0, "cargo", "add", "--offline", "itoa")
		contains(t, b.run(0, "cargo", "build", "--offline").Stderr, "Compiling itoa v1", "Compiling calc")
	})
	t.Run("cargo test", func(t *testing.T) {
		b := b.at(t)
		contains(t, b.run(0, "cargo", "test", "--offline", "good").Stdout, "test rpn::tests::good ... ok", "1 passed; 0 failed")
		contains(t, b.run(101, "cargo", "test", "--offline").Stdout, "test rpn::tests::bad ... FAILED", "1 passed; 1 failed")
	})
}

// difference is what only one of two lists has.
func difference(before, after string) string {
	var lines []string
	for _, line := range strings.Split(after, "\n") {
		if !strings.Contains(before, line+"\n") {
			lines = append(lines, "+ "+line)
		}
	}
	return strings.Join(lines[:min(len(lines), 20)], "\n")
}
