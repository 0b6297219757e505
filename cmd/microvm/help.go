package main

import "github.com/spf13/cobra"

// helpTopics are pages of "microvm help" that belong to no verb.
func helpTopics() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "connection",
			Short: "How the daemon is found",
			Long: `The first of these that is there is used:

  1. --url (with --api-key, or MICROVM_API_KEY), or --machine NAME
  2. MICROVM_URL (with MICROVM_API_KEY)
  3. the daemon's Unix socket, /run/microvm/microvmd.sock or MICROVM_SOCKET,
     when it exists and this user may open it; it needs no key
  4. the emulated host "default": the file NAME/endpoint.json in
     MICROVM_MACHINE_DIR (default ~/.local/share/microvm/machines), which
     "microvm machine start" writes

What is named (1, 2, MICROVM_SOCKET) and does not answer is an error: the search
does not go on behind it. --url also takes unix:///PATH of a socket.

A key goes over the network as it is: use https outside of one machine.`,
		},
		{
			Use:   "exit-codes",
			Short: "What the exit codes mean",
			Long: `microvm run, shell, exec and execution attach exit with the program's own code.
When the program did not get to answer, they exit with one of these and say why on
standard error:

  124      it passed its timeout and was killed: too slow, not crashed
  125      microvm could not run it, or could not learn how it ended: wrong flags,
           no daemon, a full node, an upload that failed, no such user or
           directory, a sandbox that was taken away, an execution that somebody
           else cancelled. Your code did not fail
  126      the program may not be executed
  127      there is no such program
  128+n    signal n ended the program, as shells say it; a line on standard error
           names the signal. 129, 130 and 143 are also what microvm itself exits
           with after SIGHUP, Ctrl-C and SIGTERM; a line says when the program may
           still run. 141 is when nobody reads its output any more (execution
           logs, too)
  0        also when it is not known yet: after exec -d, and after ~. on a terminal

A program may exit with 124 and more by itself; with -o json, status, reason,
exit_code and signal of the execution tell the two apart without a doubt.

All other commands:

  0        done
  1        it failed; "error:" says what happened and "fix:" what to do
  2        wrong flags or arguments; nothing was done

microvm doctor and microvm machine shell say in their own help what else they
exit with.`,
		},
	}
}
