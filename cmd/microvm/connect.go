package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

const (
	defaultSocket  = "/run/microvm/microvmd.sock"
	defaultMachine = "default"
	// knockTimeout bounds the look whether a daemon listens on a socket.
	knockTimeout = 2 * time.Second
)

// endpoint is a daemon that was found: by its socket, or by URL and key.
type endpoint struct {
	socket, url, key string
}

// String is the endpoint's URL; it has no key in it.
func (e endpoint) String() string {
	if e.socket != "" {
		return "unix://" + e.socket
	}
	if u, err := url.Parse(e.url); err == nil {
		return u.Redacted()
	}
	return "an address that is none"
}

// client finds the daemon and makes a client for it.
func (g *globals) client(opts ...microvm.Option) (*microvm.Client, error) {
	e, err := g.find(os.Getenv)
	if err != nil {
		return nil, err
	}
	return e.client(opts...), nil
}

func (e endpoint) client(opts ...microvm.Option) *microvm.Client {
	if e.socket != "" {
		opts = append(opts, microvm.WithSocket(e.socket))
	} else {
		opts = append(opts, microvm.WithURL(e.url))
	}
	return microvm.New(append(opts, microvm.WithAPIKey(e.key))...)
}

// find looks for the daemon in the order that "microvm help connection" states.
// What was named and is not there is an error; only what nobody named is passed
// over.
func (g *globals) find(getenv func(string) string) (endpoint, error) {
	key := g.key
	if key == "" {
		key = getenv("MICROVM_API_KEY")
	}
	switch {
	case g.url != "" && g.machine != "":
		return endpoint{}, usage("--url and --machine name two daemons; give one of them")
	case g.url != "":
		return byURL(g.url, key)
	case g.machine != "":
		return g.ofMachine(g.machine, getenv)
	case getenv("MICROVM_URL") != "":
		return byURL(getenv("MICROVM_URL"), key)
	}
	var tried []string
	if path := getenv("MICROVM_SOCKET"); path != "" {
		if err := knock(path); err != nil {
			return endpoint{}, hint(fmt.Errorf("connect to MICROVM_SOCKET: %w", err), "start microvmd, or unset MICROVM_SOCKET")
		}
		return endpoint{socket: path}, nil
	}
	err := knock(g.socket)
	if err == nil {
		return endpoint{socket: g.socket}, nil
	}
	tried = append(tried, err.Error())
	e, err := g.ofMachine(defaultMachine, getenv)
	if err == nil {
		return e, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return endpoint{}, err
	}
	tried = append(tried, err.Error())
	return endpoint{}, hint(
		fmt.Errorf("no daemon found: no --url and no MICROVM_URL, %s", strings.Join(tried, ", ")),
		"make up (or microvm machine start) makes a host here; for one elsewhere set MICROVM_URL and MICROVM_API_KEY")
}

func byURL(address, key string) (endpoint, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return endpoint{socket: path, key: key}, nil
	}
	return endpoint{url: address, key: key}, nil
}

// ofMachine reads the endpoint of an emulated host.
func (g *globals) ofMachine(name string, getenv func(string) string) (endpoint, error) {
	dir := getenv("MICROVM_MACHINE_DIR")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return endpoint{}, hint(fmt.Errorf("find emulated host: %w", err), "set MICROVM_MACHINE_DIR")
		}
		dir = filepath.Join(home, ".local", "share", "microvm", "machines")
	}
	found, err := readEndpoint(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return endpoint{}, hint(fmt.Errorf("no emulated host %q: %w", name, err), fmt.Sprintf("microvm machine start --name %s, or microvm machine status", name))
	case err != nil:
		return endpoint{}, hint(fmt.Errorf("find emulated host: %w", err), "microvm machine start writes the file anew")
	}
	if g.key != "" {
		found.key = g.key
	}
	return found, nil
}

// readEndpoint reads what an emulated host left for its clients. It is read
// here, as this program also runs where no emulated host can be made.
func readEndpoint(dir, name string) (endpoint, error) {
	if name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return endpoint{}, fmt.Errorf("%q is no name of a machine", name)
	}
	path := filepath.Join(dir, name, "endpoint.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return endpoint{}, err
	}
	var file struct {
		URL    string `json:"url"`
		APIKey string `json:"api_key"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return endpoint{}, fmt.Errorf("read %s: %w", path, err)
	}
	return endpoint{url: file.URL, key: file.APIKey}, nil
}

// knock reports why nobody answers on a socket.
func knock(path string) error {
	c, err := net.DialTimeout("unix", path, knockTimeout)
	if err == nil {
		return c.Close()
	}
	cause := err
	var op *net.OpError
	if errors.As(err, &op) {
		cause = op.Err
	}
	var call *os.SyscallError
	if errors.As(cause, &call) {
		cause = call.Err
	}
	return fmt.Errorf("%s: %w", path, cause)
}

// resolve finds a sandbox by its id, or by the name of one that has not stopped.
func resolve(ctx context.Context, client *microvm.Client, ref string) (string, error) {
	if len(ref) == len("sb_")+26 && strings.HasPrefix(ref, "sb_") {
		return ref, nil
	}
	for sb, err := range client.Sandboxes.All(ctx, microvm.ListSandboxesParams{Name: &ref}) {
		if err != nil {
			return "", fmt.Errorf("find sandbox %q: %w", ref, err)
		}
		if sb.State != microvm.SandboxStateStopped {
			return sb.ID, nil
		}
	}
	return "", hint(fmt.Errorf("no sandbox with the name %q runs", ref), "microvm sandbox ls shows those that run; microvm sandbox create makes one")
}

// completions asks the daemon for words to complete with; it is quick or silent.
func (g *globals) completions(ask func(context.Context, *microvm.Client) []cobra.Completion) ([]cobra.Completion, cobra.ShellCompDirective) {
	client, err := g.client(microvm.WithMaxRetries(0))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), knockTimeout)
	defer cancel()
	return ask(ctx, client), cobra.ShellCompDirectiveNoFileComp
}

// completeSandboxes completes ids and names of sandboxes that have not stopped.
func (g *globals) completeSandboxes(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return g.completions(func(ctx context.Context, client *microvm.Client) []cobra.Completion {
		list, err := liveSandboxes(ctx, client, microvm.ListSandboxesParams{}, 100)
		if err != nil {
			return nil
		}
		var words []cobra.Completion
		for _, sb := range list.Data {
			about := clean(sb.Image) + ", " + string(sb.State)
			words = append(words, cobra.CompletionWithDesc(clean(sb.ID), about))
			if sb.Name != nil {
				words = append(words, cobra.CompletionWithDesc(clean(*sb.Name), about))
			}
		}
		return words
	})
}

// completeOneSandbox completes the first argument only.
func (g *globals) completeOneSandbox(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return g.completeSandboxes(cmd, args, word)
}

// completeImage completes the first argument with the node's images.
func (g *globals) completeImage(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return g.completions(func(ctx context.Context, client *microvm.Client) []cobra.Completion {
		list, err := client.Images.List(ctx)
		if err != nil {
			return nil
		}
		var words []cobra.Completion
		for _, image := range list.Data {
			words = append(words, cobra.CompletionWithDesc(clean(image.ID), languageOf(image)))
		}
		return words
	})
}
