package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newSandboxCommand(g *globals) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:     "sandbox",
		Aliases: []string{"sb"},
		Short:   "Create, list, show, extend and delete sandboxes",
		Long: `A sandbox is a microVM that you hold and run programs in. It ends when you delete
it, when its time to live (TTL) is over, or when it was not used for its idle
time. A stopped one stays readable for a while. Where a verb takes a SANDBOX, give
its id or its name.`,
		Example: `  microvm sandbox create python --name work
  microvm sandbox ls
  microvm sandbox rm work`,
	})
	cmd.AddCommand(
		newSandboxCreateCommand(g), newSandboxListCommand(g), newSandboxGetCommand(g),
		newSandboxExtendCommand(g), newSandboxTouchCommand(g), newSandboxRemoveCommand(g),
	)
	return cmd
}

// sandboxFlags are the flags of every verb that creates a sandbox.
type sandboxFlags struct {
	vcpus, mem int
	ttl        seconds
	idle       idleTime
	name       string
	tags       pairs
	cold       bool
}

func (s *sandboxFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&s.vcpus, "vcpus", 1, "virtual CPUs")
	flags.IntVar(&s.mem, "mem-mib", 256, "guest memory in MiB")
	flags.Var(&s.ttl, "ttl", "time to live: seconds, or 90s, 15m, 2h (default 15m)")
	flags.Var(&s.idle, "idle", "delete it after this time without use: seconds, or 90s, 15m, 2h, or never (default 2m)")
	flags.StringVar(&s.name, "name", "", "a name, unique among sandboxes that have not stopped")
	flags.BoolVar(&s.cold, "cold", false, "boot it although it could be restored from a template: takes longer, and its kernel lies at an address of its own")
	flags.Var(&s.tags, "tag", "a label, KEY=VALUE; may be repeated")
	must(cmd.RegisterFlagCompletionFunc("idle", cobra.FixedCompletions([]string{neverIdle, "5m", "1h"}, cobra.ShellCompDirectiveNoFileComp)))
}

// spec leaves out what was not given: the defaults are the node's.
func (s *sandboxFlags) spec(flags *pflag.FlagSet, image string) microvm.SandboxCreate {
	var boot *microvm.SandboxCreateBoot
	if s.cold {
		boot = new(microvm.SandboxCreateBootCold)
	}
	return microvm.SandboxCreate{
		Image:       image,
		Name:        optional(flags, "name", s.name),
		Vcpus:       optional(flags, "vcpus", s.vcpus),
		MemMib:      optional(flags, "mem-mib", s.mem),
		TTLSeconds:  s.ttl.pointer(),
		IdleSeconds: s.idle.pointer(),
		Boot:        boot,
		Tags:        microvm.Tags(s.tags),
	}
}

// stateOf says the state, and why it stopped.
func stateOf(sb microvm.Sandbox) string {
	state := clean(string(sb.State))
	if sb.StopReason != nil {
		why := clean(string(*sb.StopReason))
		switch {
		case sb.Reason == nil:
		case *sb.StopReason == microvm.SandboxStopReasonFailed:
			why += ": " + clean(string(*sb.Reason))
		default: // says the same, and more
			why = clean(string(*sb.Reason))
		}
		state += " (" + why + ")"
	}
	return state
}

// expiryOf says when the TTL ends, from now.
func expiryOf(sb microvm.Sandbox, now time.Time) string {
	if sb.State == microvm.SandboxStateStopped {
		return "-"
	}
	return "in " + age(sb.Expires.Sub(now))
}

// tagsOf says the tags in the order of their keys.
func tagsOf(tags microvm.Tags) string {
	if len(tags) == 0 {
		return "-"
	}
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		texts = append(texts, clean(key)+"="+clean(tags[key]))
	}
	return strings.Join(texts, ",")
}

// printSandbox prints one sandbox for people.
func printSandbox(cmd *cobra.Command, sb *microvm.Sandbox) error {
	rows := [][2]string{
		{"id", clean(sb.ID)},
		{"name", orDash(sb.Name)},
		{"image", clean(sb.Image)},
		{"state", stateOf(*sb)},
		{"boot", orDash(sb.Boot)},
		{"vcpus", fmt.Sprint(sb.Vcpus)},
		{"memory", fmt.Sprintf("%d MiB", sb.MemMib)},
		{"tags", tagsOf(sb.Tags)},
		{"created", moment(sb.Created)},
		{"expires", moment(sb.Expires)},
	}
	if sb.Stopped != nil {
		rows = append(rows, [2]string{"stopped", moment(*sb.Stopped)})
	}
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%-8s %s\n", row[0], row[1])
	}
	return printAll(cmd.OutOrStdout(), b.String())
}

// moment says a time in the zone of who reads it.
func moment(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05 MST") }
