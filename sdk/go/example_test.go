package microvm_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// A first program: a sandbox, a file, a run, its answer.
func Example() {
	ctx := context.Background()
	client := microvm.New() // MICROVM_URL and MICROVM_API_KEY
	sb, err := client.Sandboxes.Create(ctx, microvm.SandboxCreate{Image: "python", MemMib: new(512)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _, _ = client.Sandboxes.Delete(context.WithoutCancel(ctx), sb.ID) }()
	if _, err := client.Files.Write(ctx, sb.ID, "main.py", []byte("print('hello')\n")); err != nil {
		log.Print(err)
		return
	}
	exe, err := client.Run(ctx, sb.ID, "python3", "main.py")
	if err != nil {
		log.Print(err) // the call failed: nothing is known of the program
		return
	}
	if err := exe.Err(); err != nil {
		log.Print(err) // the program did not get to answer; the text says whose doing that was
		return
	}
	fmt.Print(exe.Stdout)
}

// Output as it comes. Whoever reads may go and come back: the program runs on.
func ExampleExecutionService_Stream() {
	ctx := context.Background()
	client := microvm.New()
	exe, err := client.Executions.Create(ctx, "sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4", microvm.ExecutionCreate{Cmd: "make"})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range client.Executions.Stream(ctx, exe.Sandbox, exe.ID, microvm.Position{}) {
		if err != nil {
			log.Fatal(err)
		}
		switch event.Type {
		case microvm.EventStdout, microvm.EventStderr:
			fmt.Printf("%s at %d: %q\n", event.Stream, event.Offset, event.Data)
		case microvm.EventTruncated:
			fmt.Printf("%s: %d bytes are not kept any more\n", event.Stream, event.To-event.Offset)
		case microvm.EventExit:
			fmt.Println("ended:", event.Exit.Of(exe).Err())
		}
	}
}

// A full node is no fault: how long to wait is the caller's choice.
func ExampleError() {
	client := microvm.New()
	_, err := client.Sandboxes.Create(context.Background(), microvm.SandboxCreate{Image: "python"})
	var refused *microvm.Error
	if errors.As(err, &refused) && refused.Code == microvm.ErrorCodeNodeAtCapacity {
		fmt.Println("full; there may be room in", refused.RetryAfter)
	}
}
