package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Files of a machine's directory.
const (
	settingsFile = "machine.json"
	runFile      = "run.json"
	exitFile     = "exit.json"
	endpointFile = "endpoint.json"
	hashesFile   = "hashes.json"
	serialFile   = "serial.log"
	keeperLog    = "keeper.log"
	commandLock  = "command.lock"
	keeperLock   = "keeper.lock"
	dataDisk     = "data.img"
	mailboxDisk  = "mailbox.img"
)

// Settings are what a machine was made with and keeps over its runs.
type Settings struct {
	MemoryMiB int      `json:"memory_mib"`
	Cores     int      `json:"cores"`
	DiskGiB   int      `json:"disk_gib"`
	Packages  []string `json:"packages,omitempty"`
	SSHPort   int      `json:"ssh_port"`
	APIPort   int      `json:"api_port"`
}

// run is what the keeper writes down while QEMU lives.
type run struct {
	Keeper   Identity  `json:"keeper"`
	QEMU     Identity  `json:"qemu"`
	Started  time.Time `json:"started"`
	Settings Settings  `json:"settings"`
	Release  string    `json:"qemu_release"`
	Root     string    `json:"host_root"`
}

// Ending says how a run ended.
type Ending string

// The endings. Only asked and poweroff leave a machine stopped; after the others it has crashed.
const (
	EndAsked    Ending = "asked"    // machine stop, or the keeper was told to
	EndPoweroff Ending = "poweroff" // the host powered itself off
	EndPanic    Ending = "panic"    // the host's kernel panicked
	EndReset    Ending = "reset"    // the host restarted without a panic on its console
	EndKilled   Ending = "killed"   // QEMU was killed by a signal that the keeper did not send
	EndFailed   Ending = "failed"   // QEMU ended by itself with an error
)

// exit is the last run's end, as the keeper saw it.
type exit struct {
	Ending Ending    `json:"ending"`
	Detail string    `json:"detail,omitempty"`
	Lines  []string  `json:"lines,omitempty"`
	Ended  time.Time `json:"ended"`
}

// Endpoint is where a machine's API is and with which key.
type Endpoint struct {
	URL    string `json:"url"`
	APIKey string `json:"api_key"`
}

// ReadEndpoint reads the endpoint that Start left for the named machine below dir. The error is fs.ErrNotExist when there is none.
func ReadEndpoint(dir, name string) (Endpoint, error) {
	var e Endpoint
	if !namePattern.MatchString(name) {
		return e, &ValueError{"name", fmt.Sprintf("%q", name), "a machine's name"}
	}
	return e, readJSON(filepath.Join(dir, name, endpointFile), &e)
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces path as a whole, readable by its owner only.
func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return writeFile(path, append(text, '\n'), 0o600)
}

func writeFile(path string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }
