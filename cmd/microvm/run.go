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
	"syscall"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

type runOptions struct {
	files         []string
	sandbox       sandboxFlags
	execution     executionFlags
	keep, timings bool
}

func newRunCommand(g *globals) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run IMAGE [flags] -- CMD [ARG]...",
		Short: "Run a program in a new sandbox, and delete the sandbox",
		Long: `Creates a sandbox, puts files into its working directory, runs the program,
prints what it printed, and deletes the sandbox, also after Ctrl-C and errors.

No shell is involved: for shell syntax run sh -c. The program has no standard
input. Its output is printed when it has ended: the last 1 MiB of each stream,
as text (bytes that are no UTF-8 are replaced); for more or other bytes let it
write a file, and use microvm cp on a sandbox of your own.

The exit code is the program's own; 124 to 127 say that it did not get to answer.
See microvm help exit-codes.`,
		Example: `  microvm run python -- python3 -c 'print("hello")'
  microvm run python --file main.py --file data.csv:in/data.csv -- python3 main.py
  echo 'print(6 * 7)' | microvm run python --file -:main.py -- python3 main.py
  microvm run python --timeout 10s --mem-mib 512 --timings -- python3 -m timeit
  microvm run base -o json -- sh -c 'exit 3'`,
		Args:              commandArgs("IMAGE"),
		ValidArgsFunction: g.completeImage,
		Annotations:       map[string]string{programAnnotation: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runRun(cmd, g, &o, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.files, "file", "f", nil, "local file to put into the working directory, or LOCAL:REMOTE; - is standard input; may be repeated")
	o.sandbox.add(cmd)
	o.execution.add(flags)
	flags.BoolVar(&o.keep, "keep", false, "leave the sandbox there (it ends with its idle time or its TTL), and print its id on standard error")
	flags.BoolVar(&o.timings, "timings", false, "print how long each step took, in ms, on standard error")
	must(cmd.MarkFlagFilename("file"))
	cmd.SetFlagErrorFunc(missingDash("IMAGE"))
	return cmd
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
	client   *microvm.Client
	progress *progress
	stderr   io.Writer
	keep     bool
	result   runResult
}

func runRun(cmd *cobra.Command, g *globals, o *runOptions, image string, command []string) error {
	// A reader that went away must not end this program before the sandbox is deleted.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	files, err := openFiles(o.files, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer closeFiles(files)
	client, err := g.client()
	if err != nil {
		return err
	}
	r := &runner{client: client, progress: newProgress(cmd.ErrOrStderr(), g.verbose), stderr: cmd.ErrOrStderr(), keep: o.keep}
	r.result.Object = "run"
	spec := o.sandbox.spec(cmd.Flags(), image)
	spec.TTLSeconds = ttlFor(o.sandbox.ttl, o.execution.timeout)
	ctx := cmd.Context()
	if err := r.create(ctx, spec); err != nil {
		return err
	}
	err = r.upload(ctx, files)
	if err == nil {
		err = r.run(ctx, o.execution.spec(command))
	}
	if err == nil && g.output != outputJSON {
		err = printOutput(cmd, r.result.Execution)
	}
	r.delete(ctx)
	if o.timings {
		t := r.result.Timings
		say(r.stderr, "timings: create %d ms, upload %d ms, run %d ms, delete %d ms\n", t.CreateMS, t.UploadMS, t.RunMS, t.DeleteMS)
	}
	if err != nil {
		return err
	}
	if g.output == outputJSON {
		if err := printJSON(cmd.OutOrStdout(), r.result); err != nil {
			return outputError(err)
		}
	}
	return programEnd(r.stderr, r.result.Execution)
}

func (r *runner) create(ctx context.Context, spec microvm.SandboxCreate) error {
	began := time.Now()
	sb, err := createSandbox(ctx, r.client, spec, r.progress, r.stderr)
	r.result.Timings.CreateMS = time.Since(began).Milliseconds()
	r.result.Sandbox = sb
	return err
}

func (r *runner) upload(ctx context.Context, files []localFile) error {
	began := time.Now()
	defer func() { r.result.Timings.UploadMS = time.Since(began).Milliseconds() }()
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

func (r *runner) run(ctx context.Context, spec microvm.ExecutionCreate) error {
	began := time.Now()
	defer func() { r.result.Timings.RunMS = time.Since(began).Milliseconds() }()
	defer r.progress.wait("the end of " + clean(spec.Cmd))()
	exe, err := r.client.Executions.Run(ctx, r.result.Sandbox.ID, spec)
	r.result.Execution = exe
	return err
}

// delete deletes the sandbox whatever happened before, and says so where it
// could not: the exit code stays the program's.
func (r *runner) delete(ctx context.Context) {
	id := r.result.Sandbox.ID
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
	const byDefault, margin = 15 * 60, 5 * 60
	if ttl == 0 && timeout > byDefault-margin {
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
		err = hint(fmt.Errorf("%s is a directory; only files can be copied now", path), "name its files one by one, or copy a tar file and unpack it in the sandbox")
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
