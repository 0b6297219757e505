// Command census counts what a host holds that a sandbox could have left:
// processes, cgroups, mounts, network namespaces and interfaces, nftables,
// sockets and files. It reads the kernel and the disk, never a daemon's own
// list.
//
//	census take --state-dir DIR > before.json
//	census compare before.json --state-dir DIR
//
// compare prints each thing that is there now and was not before, and exits
// with 1 if there is one.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("census", flag.ContinueOnError)
	stateDir := flags.String("state-dir", "/var/lib/microvm", "the daemon's state directory, whose jails are counted")
	if len(args) == 0 {
		return errors.New("usage: census take|compare FILE [--state-dir DIR]")
	}
	verb, rest := args[0], args[1:]
	var before string
	if verb == "compare" && len(rest) > 0 {
		before, rest = rest[0], rest[1:]
	}
	if err := flags.Parse(rest); err != nil {
		return err
	}
	now, err := take(*stateDir)
	if err != nil {
		return err
	}
	switch verb {
	case "take":
		return json.NewEncoder(os.Stdout).Encode(now)
	case "compare":
		return compare(before, now)
	}
	return fmt.Errorf("unknown verb %q", verb)
}

func compare(path string, now []string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var before []string
	if err := json.Unmarshal(data, &before); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	left := 0
	for _, thing := range now {
		if !slices.Contains(before, thing) {
			fmt.Println(thing)
			left++
		}
	}
	if left > 0 {
		return fmt.Errorf("%d things are left over", left)
	}
	return nil
}

// take lists everything, one line a thing.
func take(stateDir string) ([]string, error) {
	var all []string
	for _, count := range []func(string) ([]string, error){processes, cgroups, mounts, interfaces, tables, sockets, jails, halfMade} {
		things, err := count(stateDir)
		if err != nil {
			return nil, err
		}
		all = append(all, things...)
	}
	slices.Sort(all)
	return all, nil
}

// processes lists VMMs and jailers, and whatever runs as a uid that only a VMM
// has. A process is told from a later one of its number by its start time.
func processes(string) ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		pid := entry.Name()
		if strings.Trim(pid, "0123456789") != "" {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil {
			continue // it ended meanwhile
		}
		open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
		name, fields := string(stat[open+1:end]), strings.Fields(string(stat[end+1:]))
		var uid int
		if status, err := os.ReadFile(filepath.Join("/proc", pid, "status")); err == nil {
			_, line, _ := strings.Cut(string(status), "\nUid:")
			_, _ = fmt.Sscan(line, &uid)
		}
		vmm := strings.HasPrefix(name, "firecracker") || strings.HasPrefix(name, "jailer") || strings.HasPrefix(name, "fc_")
		if (vmm || uid >= 1_000_000_000) && fields[0] != "Z" {
			all = append(all, fmt.Sprintf("process %s %s uid %d started %s", pid, name, uid, fields[19]))
		}
		if vmm && fields[0] == "Z" {
			all = append(all, fmt.Sprintf("zombie %s %s started %s", pid, name, fields[19]))
		}
	}
	return all, nil
}

func cgroups(string) ([]string, error) {
	var all []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went away while we looked
		}
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "sb-") {
			all = append(all, "cgroup "+path)
		}
		return err
	})
	return all, err
}

func mounts(stateDir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (strings.HasPrefix(fields[4], stateDir+"/") || strings.Contains(fields[4], "microvm") || strings.Contains(fields[4], "netns")) {
			all = append(all, "mount "+fields[4])
		}
	}
	return all, nil
}

func interfaces(string) ([]string, error) {
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		all = append(all, "interface "+entry.Name())
	}
	return all, nil
}

func tables(string) ([]string, error) {
	out, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("list nftables: %w", err)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		all = append(all, "nft "+strings.TrimSpace(line))
	}
	return all, nil
}

// sockets lists Unix sockets bound in a jail of the state directory, also when
// the name is gone from the disk.
func sockets(stateDir string) ([]string, error) {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if path := fields[len(fields)-1]; strings.HasPrefix(path, filepath.Join(stateDir, "jails")+"/") {
			all = append(all, "socket "+path)
		}
	}
	return all, nil
}

// jails lists every file of a sandbox: its jail with its disks.
func jails(stateDir string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(filepath.Join(stateDir, "jails"), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && strings.Contains(path, "/sb-") {
			all = append(all, "file "+path)
		}
		return err
	})
	return all, err
}

// halfMade lists templates that are not complete. Complete ones belong to no
// sandbox: they are there to stay.
func halfMade(stateDir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(stateDir, "templates"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "new-") {
			all = append(all, "half-made template "+entry.Name())
		}
	}
	return all, err
}
