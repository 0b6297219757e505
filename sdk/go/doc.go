// Package microvm is the Go client of the Microvm API. It owns the way of a
// request (addresses, keys, repeats, waiting) and what an ending means; the
// wire types are generated from the specification and it must not add to them.
// It needs the standard library only.
//
//	client := microvm.New() // MICROVM_URL and MICROVM_API_KEY
//	sb, err := client.Sandboxes.Create(ctx, microvm.SandboxCreate{Image: "python"})
//	if err != nil {
//		return err
//	}
//	defer client.Sandboxes.Delete(context.WithoutCancel(ctx), sb.ID)
//	if _, err := client.Files.Write(ctx, sb.ID, "main.py", []byte("print('hello')\n")); err != nil {
//		return err
//	}
//	exe, err := client.Run(ctx, sb.ID, "python3", "main.py")
//	if err != nil {
//		return err // the call failed: nothing is known of the program
//	}
//	if err := exe.Err(); err != nil {
//		return err // the program was not allowed to answer: it did not fail by itself
//	}
//	fmt.Print(exe.Stdout) // its own answer; exe.ExitCode is nil after a signal
//
// # Errors
//
// What a call returns tells three things apart:
//   - *Error: the server refused, with a code that never changes its meaning.
//   - *ConnectionError: there was no whole reply; Sent says whether the request may have had its effect.
//   - an error of the context: the caller's own time was over. An execution that was started goes on.
//
// How a program ended is no error of a call: see [Execution.Err].
//
// # Output as it comes
//
//	exe, err := client.Executions.Create(ctx, sb.ID, microvm.ExecutionCreate{Cmd: "make", Env: microvm.Env{"TOKEN": token}})
//	if err != nil {
//		return err
//	}
//	exe, err = client.Executions.CopyOutput(ctx, exe, microvm.Output{Stdout: os.Stdout, Stderr: os.Stderr})
//
// Stream gives the single events. Both live through a lost connection and a
// restart of the daemon, tell no byte twice and pass over none in silence. The
// program itself needs neither: it runs on without a reader. CopyStdin feeds it,
// Cancel ends it.
//
// # Files
//
// Write, WriteBatch and Read hold what they move in memory; Upload, Append, Download,
// DownloadRange, UploadArchive and DownloadArchive stream it, whatever its size. What
// breaks off is taken up again by offsets: Append at the size that Stat says, and
// DownloadRange behind what came, with its ETag so that it is of the same file:
//
//	part, err := client.Files.DownloadRange(ctx, sb.ID, "data.bin", microvm.FileRange{}, w)
//	for lost := new(microvm.ConnectionError); part != nil && errors.As(err, &lost) && ctx.Err() == nil; {
//		next := microvm.FileRange{Offset: part.Offset + part.Written, ETag: part.ETag}
//		part, err = client.Files.DownloadRange(ctx, sb.ID, "data.bin", next, w)
//	}
//
// All lists directories of any size, page by page, and Watch tells what changes. A
// name may be any bytes: File.ExactPath has them.
//
// # Names
//
// Fields are the API's in Go's own spelling: id is ID, ttl_seconds is TTLSeconds.
//
// # Repeats
//
// A request is repeated only where a repeat cannot do anything twice: reads,
// deletes of sandboxes, touches, sizes and input (which has offsets) after a lost connection,
// a 429 or a 503 (its Retry-After is obeyed up to 30 s), everything else only
// when no connection could be made.
// Creating on a full node is not repeated: how long to wait for room is the
// caller's choice.
package microvm
