package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// program is one program that this process starts and stays with to its end. Its
// fields are set before it runs; one goroutine calls its methods.
type program struct {
	client   *microvm.Client
	sandbox  string
	stdin    io.Reader // what it is to read, or nil
	stdout   io.Writer
	stderr   io.Writer
	local    *terminal // the terminal that it runs on, or nil
	json     bool      // nothing is printed as it comes: the result holds the output
	progress *progress

	interrupted *interruption // the first one, where there was one; for end
}

// newProgram finds the daemon, and refuses what cannot be done before anything is.
func newProgram(cmd *cobra.Command, g *globals, how attachFlags) (*program, error) {
	p := &program{
		stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), json: g.output == outputJSON,
		progress: newProgress(cmd.ErrOrStderr(), g.verbose),
	}
	switch {
	case how.tty && p.json:
		return nil, usage("-t and -o json do not go together: a terminal shows what comes as it comes")
	case how.tty:
		var err error
		if p.local, err = openTerminal(cmd.InOrStdin(), p.stdout, p.stderr); err != nil {
			return nil, err
		}
	case how.interactive:
		p.stdin = cmd.InOrStdin()
	}
	var err error
	p.client, err = g.client()
	return p, err
}

// run starts the program and stays with it. Without an error the execution has
// ended; beside one it is what is known of it, or nil.
func (p *program) run(ctx context.Context, spec microvm.ExecutionCreate) (*microvm.Execution, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if p.local != nil {
		return p.runOnTerminal(ctx, spec)
	}
	work, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	defer leave(nil)
	started := make(chan *microvm.Execution, 1)
	defer p.mindSignals(ctx, work, leave, started)()
	shown := func() {}
	if !onTerminal(p.stdin) { // else it would be drawn over what the user types
		shown = p.progress.wait("the end of " + clean(spec.Cmd))
	}
	defer shown()
	exe, err := p.client.Executions.Create(work, p.sandbox, spec)
	if err != nil || exe.Status == microvm.ExecutionStatusFailed {
		return exe, err // another that has ended already may have printed something
	}
	started <- exe
	feeding := p.feed(work, leave, exe)
	if p.json {
		ended, err := p.client.Executions.Wait(work, p.sandbox, exe.ID)
		if ended != nil {
			exe = ended
		}
		return exe, feeding.or(err)
	}
	exe, err = copyOutput(work, p.client, exe, microvm.Position{}, p.stdout, p.stderr, shown)
	var cause *interruption
	if err != nil && errors.As(context.Cause(work), &cause) {
		err = cause
	}
	return exe, feeding.or(err)
}

// runOnTerminal is run on this terminal. Signals to this process only detach it:
// keys, Ctrl-C too, are the program's.
func (p *program) runOnTerminal(ctx context.Context, spec microvm.ExecutionCreate) (*microvm.Execution, error) {
	spec.Rows, spec.Cols = p.local.initialSize()
	shown := p.progress.wait("the start of " + clean(spec.Cmd))
	exe, err := p.client.Executions.Create(ctx, p.sandbox, spec)
	shown()
	if err != nil || exe.Status == microvm.ExecutionStatusFailed {
		return exe, err
	}
	return attach(ctx, p.client, exe, p.local, 0)
}

// copyOutput shows an execution's output as it comes, to its end. first is called
// before anything is shown.
func copyOutput(ctx context.Context, client *microvm.Client, exe *microvm.Execution, from microvm.Position, stdout, stderr io.Writer, first func()) (*microvm.Execution, error) {
	onStderr := &printer{w: stderr, first: first}
	exe, err := client.Executions.CopyOutput(ctx, exe, microvm.Output{
		From:   from,
		Stdout: &printer{w: stdout, first: first},
		Stderr: onStderr,
		Lost: func(stream microvm.OutputStream, from, to int64) {
			first()
			sayMissing(stderr, stream, to-from)
		},
	})
	if onTerminal(stderr) && onStderr.open {
		say(stderr, "\n") // what follows is ours
	}
	return exe, err
}

func sayMissing(w io.Writer, stream microvm.OutputStream, n int64) {
	say(w, "note: %s of %s are missing here; they are not kept any more\n", bytesOf(n), streamName(stream))
}

func bytesOf(n int64) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

func streamName(stream microvm.OutputStream) string {
	if stream == microvm.OutputStreamStderr {
		return "standard error"
	}
	return "standard output"
}

// printer writes a program's output as it is, and keeps errors of this side
// apart from those of the connection.
type printer struct {
	w     io.Writer
	first func() // called before a write
	open  bool   // the last line has no end
}

func (p *printer) Write(data []byte) (int, error) {
	p.first()
	p.open = len(data) > 0 && data[len(data)-1] != '\n'
	n, err := p.w.Write(data)
	if err != nil {
		err = outputError(fmt.Errorf("print output: %w", err))
	}
	return n, err
}

// feeding is the passing of standard input to a program.
type feeding struct {
	mu  sync.Mutex
	err error // guarded by mu: why it ended early
}

// or is why the input could not be passed, else err: the second follows from the
// first.
func (f *feeding) or(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	return err
}

// feed passes standard input to the program. An input that breaks must not look
// like one that ends, to a tar for example: the program is then killed. The
// goroutine is not waited for, as nothing ends a read of standard input; it ends
// with this process.
func (p *program) feed(ctx context.Context, leave context.CancelCauseFunc, exe *microvm.Execution) *feeding {
	f := new(feeding)
	if p.stdin == nil {
		return f
	}
	go func() {
		_, err := p.client.Executions.CopyStdin(ctx, p.sandbox, exe.ID, 0, p.stdin)
		if err == nil || ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		f.err = fmt.Errorf("%w; the program was killed, as it would have taken this for the end", err)
		f.mu.Unlock()
		if _, err := p.client.Executions.Cancel(ctx, p.sandbox, exe.ID, microvm.ExecutionCancel{}); err != nil {
			leave(err)
		}
	}()
	return f
}

// end is the exit code of an execution that has ended, and what there is to say.
func (p *program) end(exe *microvm.Execution) error {
	if p.interrupted != nil && exe.Status == microvm.ExecutionStatusCanceled {
		return fmt.Errorf("%s: %w", clean(exe.Cmd), p.interrupted)
	}
	return programEnd(p.stderr, exe)
}

// sayWhatIsLeft says what may go on although its caller leaves.
func sayWhatIsLeft(w io.Writer, sandbox string, exe *microvm.Execution, err error) {
	var lost *microvm.ConnectionError
	switch {
	case exe != nil && !exe.Ended() && errors.Is(err, errDetached):
		say(w, "\ndetached; %s goes on: microvm execution attach %s %s comes back to it, microvm execution cancel ends it\n", clean(exe.ID), clean(sandbox), clean(exe.ID))
	case exe != nil && !exe.Ended():
		say(w, "%s may still run: microvm execution attach %s %s goes back to it, microvm execution cancel ends it\n", clean(exe.ID), clean(sandbox), clean(exe.ID))
	case exe == nil && errors.As(err, &lost) && lost.Sent:
		say(w, "the program may have been started: microvm execution ls %s\n", clean(sandbox))
	}
}
