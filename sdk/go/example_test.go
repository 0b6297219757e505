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

// A full node is no fault: how long to wait is the caller's choice.
func ExampleError() {
	client := microvm.New()
	_, err := client.Sandboxes.Create(context.Background(), microvm.SandboxCreate{Image: "python"})
	var refused *microvm.Error
	if errors.As(err, &refused) && refused.Code == microvm.ErrorCodeNodeAtCapacity {
		fmt.Println("full; there may be room in", refused.RetryAfter)
	}
}
