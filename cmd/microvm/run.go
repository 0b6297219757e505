package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// defaultTTL is the API's, in seconds.
const defaultTTL = 15 * 60

// extendEvery is how often a sandbox whose terminal is used is extended. Tests
// make it short.
var extendEvery = 5 * time.Minute

type runOptions struct {
	source        string // a directory or a file, or ""
	files         []string
	sandbox       sandboxFlags
	execution     executionFlags
	attach        attachFlags
	keep, timings bool
}

func newRunCommand(g *globals) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run IMAGE [DIR|FILE] [flags] [-- CMD [ARG]...]",
		Short: "Run a program in a new sandbox, and delete the sandbox",
		Long: `Creates a sandbox, puts files into its working directory, runs the program,
prints what it prints, as it comes and byte for byte, and deletes the sandbox,
also after Ctrl-C and errors.

The content of DIR, or FILE, is put into the working directory as microvm cp does
it. What the file .microvmignore in DIR says is left out; it is written as a
.gitignore is. .git is always left out. Without a command the image's language
says what runs: main.py or __main__.py of python, main.js, main.mjs, main.ts,
index.js or index.ts of node, go run of a directory with go.mod or main.go, cargo
run of one with Cargo.toml, main.sh in any image; of a FILE its ending.

No shell is involved: for shell syntax run sh -c. The program has no standard
input; -i passes on this one, and -it runs it on this terminal. microvm help exec
says more about both, and about Ctrl-C. With -o json nothing is printed until the
end: then one object, with the last 1 MiB of each stream as text.

The exit code is the program's own; 124 to 127 say that it did not get to answer.
See microvm help exit-codes.`,
		Example: `  microvm run python -- python3 -c 'print("hello")'
  microvm run python main.py
  microvm run go . -- go test ./...
  microvm run python --file main.py --file data.csv:in/data.csv -- python3 main.py
  echo 'print(6 * 7)' | microvm run python -i -- python3
  microvm run python --timeout 10s --mem-mib 512 --timings -- python3 -m timeit
  microvm run python -it -- python3
  microvm run python -e API_TOKEN --file main.py -- python3 main.py
  microvm run base -o json -- sh -c 'exit 3'`,
		Args:              runArgs,
		ValidArgsFunction: g.completeImage,
		Annotations:       map[string]string{programAnnotation: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			command := args[1:]
			if dash := cmd.ArgsLenAtDash(); dash != 1 {
				o.source, command = args[1], args[2:]
			}
			return o.run(cmd, g, args[0], command)
		},
	}
	o.add(cmd)
	o.attach.add(cmd.Flags())
	cmd.Flags().BoolVar(&o.timings, "timings", false, "print how long each step took, in ms, on standard error")
	cmd.SetFlagErrorFunc(missingDash("IMAGE"))
	return cmd
}

// add adds the flags of every verb that runs a program in a sandbox of its own.
func (o *runOptions) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.files, "file", "f", nil, "local file to put into the working directory, or LOCAL:REMOTE; - is standard input; may be repeated")
	o.sandbox.add(cmd)
	o.execution.add(flags)
	flags.BoolVar(&o.keep, "keep", false, "leave the sandbox there (it ends with its idle time or its TTL), and print its id on standard error")
	must(cmd.MarkFlagFilename("file"))
}

// runResult is what run prints with -o json.
type runResult struct {
	Object    string             `json:"object"` // "run"
	Sandbox   *microvm.Sandbox   `json:"sandbox"`
	Execution *microvm.Execution `json:"execution"`
	Timings   runTimings         `json:"timings"`
	Deleted   bool               `json:"deleted"` // whether the sandbox is gone
}

// runTimings are milliseconds of wall time as this program saw them.
type runTimings struct {
	CreateMS int64 `json:"create_ms"`
	UploadMS int64 `json:"upload_ms"`
	RunMS    int64 `json:"run_ms"`
	DeleteMS int64 `json:"delete_ms"`
}

// runner is one run. Only the goroutine of the command touches it.
type runner struct {
	*program
	source        *runSource // or nil
	keep, timings bool
	result        runResult
}

func (o *runOptions) run(cmd *cobra.Command, g *globals, image string, command []string) error {
	// A reader that went away must not end this program before the sandbox is deleted.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if o.attach.interactive || o.attach.tty {
		for _, file := range o.files {
			if file == "-" || strings.HasPrefix(file, "-:") {
				return usage("--file %s and -i both want standard input", file)
			}
		}
	}
	files, err := openFiles(o.files, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer closeFiles(files)
	p, err := newProgram(cmd, g, o.attach)
	if err != nil {
		return err
	}
	source, err := readSource(cmd.Context(), o.source)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		if command, err = commandFor(cmd.Context(), p.client, image, source); err != nil {
			return err
		}
	}
	program, err := o.execution.spec(command, o.attach)
	if err != nil {
		return err
	}
	spec := o.sandbox.spec(cmd.Flags(), image)
	r := &runner{program: p, source: source, keep: o.keep, timings: o.timings, result: runResult{Object: "run"}}
	if p.local == nil {
		spec.TTLSeconds = ttlFor(o.sandbox.ttl, o.execution.timeout)
	}
	err = r.whole(cmd.Context(), spec, files, program)
	if err != nil || r.result.Execution == nil {
		return err
	}
	if p.json {
		if err := printJSON(p.stdout, r.result); err != nil {
			return outputError(err)
		}
	}
	return p.end(r.result.Execution)
}

// whole runs the program in a sandbox of its own. Without an error the result
// has an execution that has ended, or none because the user left the terminal.
func (r *runner) whole(ctx context.Context, spec microvm.SandboxCreate, files []localFile, program microvm.ExecutionCreate) error {
	if err := r.create(ctx, spec); err != nil {
		return err
	}
	stop := func() {}
	if r.local != nil && spec.TTLSeconds == nil {
		stop = r.keepAlive(ctx)
	}
	err := r.upload(ctx, files)
	if err == nil {
		err = r.execute(ctx, program)
	}
	stop()
	if exe := r.result.Execution; errors.Is(err, errDetached) {
		if r.keep {
			sayWhatIsLeft(r.stderr, r.sandbox, exe, err)
		} else {
			say(r.stderr, "\ndetached; the sandbox is deleted, as there is no --keep\n")
		}
		r.result.Execution, err = nil, nil
	}
	r.delete(ctx)
	if r.timings {
		t := r.result.Timings
		say(r.stderr, "timings: create %d ms, upload %d ms, run %d ms, delete %d ms\n", t.CreateMS, t.UploadMS, t.RunMS, t.DeleteMS)
	}
	return err
}

func (r *runner) create(ctx context.Context, spec microvm.SandboxCreate) error {
	began := time.Now()
	sb, err := createSandbox(ctx, r.client, spec, r.progress, r.stderr)
	r.result.Timings.CreateMS = time.Since(began).Milliseconds()
	r.result.Sandbox = sb
	if sb != nil {
		r.sandbox = sb.ID
	}
	return err
}

func (r *runner) upload(ctx context.Context, files []localFile) error {
	began := time.Now()
	defer func() { r.result.Timings.UploadMS = time.Since(began).Milliseconds() }()
	if err := r.send(ctx, r.source); err != nil {
		return err
	}
	for _, f := range files {
		done := r.progress.wait("the upload of " + clean(f.local))
		_, err := r.client.Files.Upload(ctx, r.result.Sandbox.ID, f.remote, f.from, microvm.WithMode(f.mode))
		done()
		if err != nil {
			return fmt.Errorf("%s: %w", f.local, err)
		}
	}
	return nil
}

func (r *runner) execute(ctx context.Context, spec microvm.ExecutionCreate) error {
	began := time.Now()
	defer func() { r.result.Timings.RunMS = time.Since(began).Milliseconds() }()
	exe, err := r.run(ctx, spec)
	r.result.Execution = exe
	return err
}

// keepAlive extends the TTL of a sandbox whose user did not say one as long as he
// is at its terminal, until stop. One that is left alone ends with the default.
func (r *runner) keepAlive(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	expires := r.result.Sandbox.Expires
	var all sync.WaitGroup
	all.Go(func() {
		defer r.local.guard()
		ticker := time.NewTicker(extendEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			sb, err := r.client.Sandboxes.Extend(ctx, r.sandbox, defaultTTL)
			switch {
			case microvm.HasCode(err, microvm.ErrorCodeParameterInvalid):
				r.local.note("the node lets no sandbox live longer: this one ends at %s", expires.Local().Format(time.TimeOnly))
				return
			case err == nil:
				expires = sb.Expires
			}
		}
	})
	return func() {
		cancel()
		all.Wait()
	}
}

// delete deletes the sandbox whatever happened before, and says so where it
// could not: the exit code stays the program's.
func (r *runner) delete(ctx context.Context) {
	id := r.sandbox
	if r.keep {
		say(r.stderr, "kept sandbox %s until %s, or until it was not used for its idle time\n", clean(id), r.result.Sandbox.Expires.Local().Format(time.DateTime))
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	done := r.progress.wait("the sandbox to be deleted")
	began := time.Now()
	sb, err := r.client.Sandboxes.Delete(ctx, id)
	r.result.Timings.DeleteMS = time.Since(began).Milliseconds()
	done()
	if err != nil && !microvm.HasCode(err, microvm.ErrorCodeSandboxNotFound) {
		say(r.stderr, "warning: %s\n  fix: microvm sandbox rm %s (else it ends with its TTL)\n", cleanLines(err.Error()), clean(id))
		return
	}
	r.result.Deleted = true
	if sb != nil {
		r.result.Sandbox = sb
	}
}

// ttlFor makes a sandbox outlive the timeout of what runs in it, unless its TTL
// was named.
func ttlFor(ttl, timeout seconds) *int {
	const margin = 5 * 60
	if ttl == 0 && timeout > defaultTTL-margin {
		return new(int(timeout) + margin)
	}
	return ttl.pointer()
}

// localFile is a file to upload.
type localFile struct {
	local, remote string
	from          io.ReadCloser
	mode          os.FileMode
}

// openFiles opens all files of --file, so that a wrong one is met before a
// sandbox is made.
func openFiles(flags []string, stdin io.Reader) ([]localFile, error) {
	var files []localFile
	for _, flag := range flags {
		f, err := openFile(flag, stdin)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func openFile(flag string, stdin io.Reader) (localFile, error) {
	f := localFile{local: flag, mode: 0o644}
	if i := strings.LastIndexByte(flag, ':'); i >= 0 {
		f.local, f.remote = flag[:i], flag[i+1:]
	}
	switch {
	case f.local == "":
		return f, usage("--file %s: names no local file", flag)
	case f.local == "-" && f.remote == "":
		return f, usage("--file -: standard input needs a name in the sandbox, as in --file -:main.py")
	case f.local == "-":
		f.from = io.NopCloser(stdin)
		return f, nil
	}
	file, mode, err := openRegular(f.local)
	if err != nil {
		return f, err
	}
	f.from, f.mode = file, mode
	if f.remote == "" || strings.HasSuffix(f.remote, "/") {
		f.remote += filepath.Base(f.local)
	}
	return f, nil
}

// openRegular opens what can be read to an end, and says its permission bits.
func openRegular(path string) (*os.File, os.FileMode, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = hint(fmt.Errorf("%s is a directory", path), "microvm run IMAGE DIR -- CMD puts one into the working directory, and microvm cp anywhere")
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	mode := os.FileMode(0o644)
	if info.Mode().IsRegular() {
		mode = info.Mode().Perm()
	}
	return file, mode, nil
}

func closeFiles(files []localFile) {
	for _, f := range files {
		_ = f.from.Close() // only read
	}
}
