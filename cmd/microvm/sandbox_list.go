package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

type listOptions struct {
	all, quiet bool
	state      string
	name, tag  string
	limit      int
}

func newSandboxListCommand(g *globals) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List sandboxes",
		Long:    `Lists the sandboxes that have not stopped, newest first.`,
		Example: `  microvm sandbox ls
  microvm sandbox ls --all --tag job=42
  microvm sandbox ls --state stopped -o json
  microvm sandbox ls --quiet | xargs -r microvm sandbox rm`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runSandboxList(cmd, g, &o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.all, "all", "a", false, "also those that have stopped and are still readable")
	flags.StringVar(&o.state, "state", "", "only this state: starting, running or stopped")
	flags.StringVar(&o.name, "name", "", "only those with this name")
	flags.StringVar(&o.tag, "tag", "", "only those with this label, KEY=VALUE")
	flags.IntVar(&o.limit, "limit", 0, "at most this many; 0 is all")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "print only ids, one a line")
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"starting", "running", "stopped"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func runSandboxList(cmd *cobra.Command, g *globals, o *listOptions) error {
	params, err := o.params()
	if err != nil {
		return err
	}
	client, err := g.client()
	if err != nil {
		return err
	}
	limit := o.limit
	if limit == 0 {
		limit = 1 << 30
	}
	var list *microvm.SandboxList
	if o.all || params.State != nil {
		list, err = allSandboxes(cmd.Context(), client, params, limit)
	} else {
		list, err = liveSandboxes(cmd.Context(), client, params, limit)
	}
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case g.output == outputJSON:
		return printJSON(out, list)
	case o.quiet:
		var b strings.Builder
		for _, sb := range list.Data {
			fmt.Fprintln(&b, clean(sb.ID))
		}
		return printAll(out, b.String())
	}
	now := time.Now()
	var rows [][]string
	for _, sb := range list.Data {
		rows = append(rows, []string{
			clean(sb.ID), orDash(sb.Name), clean(sb.Image), stateOf(sb), age(now.Sub(sb.Created)), expiryOf(sb, now),
			fmt.Sprint(sb.Vcpus), fmt.Sprintf("%d MiB", sb.MemMib), tagsOf(sb.Tags),
		})
	}
	return printTable(out, []string{"ID", "NAME", "IMAGE", "STATE", "AGE", "EXPIRES", "VCPUS", "MEMORY", "TAGS"}, rows)
}

func (o *listOptions) params() (microvm.ListSandboxesParams, error) {
	var params microvm.ListSandboxesParams
	if o.limit < 0 {
		return params, usage("--limit must be 0 or more")
	}
	if o.state != "" {
		state := microvm.SandboxState(o.state)
		if !state.Valid() {
			return params, usage("--state must be starting, running or stopped")
		}
		params.State = &state
	}
	if o.name != "" {
		params.Name = &o.name
	}
	if o.tag != "" {
		key, value, ok := strings.Cut(o.tag, "=")
		if !ok || key == "" {
			return params, usage("--tag must be KEY=VALUE")
		}
		params.Tag = new(key + ":" + value)
	}
	return params, nil
}

// allSandboxes lists up to limit sandboxes in one object of the API's form.
func allSandboxes(ctx context.Context, client *microvm.Client, params microvm.ListSandboxesParams, limit int) (*microvm.SandboxList, error) {
	list := &microvm.SandboxList{Object: microvm.ListObjectList, URL: "/v1/sandboxes", Data: []microvm.Sandbox{}}
	for sb, err := range client.Sandboxes.All(ctx, params) {
		if err != nil {
			return nil, err
		}
		if len(list.Data) == limit {
			list.HasMore = true
			break
		}
		list.Data = append(list.Data, sb)
	}
	return list, nil
}

// liveSandboxes lists those that have not stopped. It asks for each such state:
// those that stopped may be many.
func liveSandboxes(ctx context.Context, client *microvm.Client, params microvm.ListSandboxesParams, limit int) (*microvm.SandboxList, error) {
	var live *microvm.SandboxList
	for _, state := range []microvm.SandboxState{microvm.SandboxStateStarting, microvm.SandboxStateRunning} {
		params.State = &state
		list, err := allSandboxes(ctx, client, params, limit)
		if err != nil {
			return nil, err
		}
		if live == nil {
			live = list
			continue
		}
		live.Data = append(live.Data, list.Data...)
		live.HasMore = live.HasMore || list.HasMore
	}
	slices.SortFunc(live.Data, func(a, b microvm.Sandbox) int { return strings.Compare(b.ID, a.ID) }) // ids sort by time
	// One that came to run between the two questions is in both answers.
	live.Data = slices.CompactFunc(live.Data, func(a, b microvm.Sandbox) bool { return a.ID == b.ID })
	if len(live.Data) > limit {
		live.Data, live.HasMore = live.Data[:limit], true
	}
	return live, nil
}
