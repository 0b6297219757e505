package firecracker

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuKeys are the lines of /proc/cpuinfo that say which processor it is, on
// amd64 and on arm64.
var cpuKeys = []string{
	"vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags",
	"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
}

// findBasis describes all that a snapshot depends on and that is the same for
// every plan: Firecracker, processor, host kernel, guest kernel, agent and boot
// line.
func (v *VMM) findBasis() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	info, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	defer func() { _ = info.Close() }()
	cpu, err := describeCPU(info)
	if err != nil {
		return "", err
	}
	basis := fmt.Sprintf("firecracker %s\nkernel %s %s\n%sboot %s\n", v.version, unix.ByteSliceToString(name.Release[:]),
		unix.ByteSliceToString(name.Version[:]), cpu, bootArgs(runtime.GOARCH, v.conf.Debug))
	for _, file := range []string{v.files.firecracker, v.files.kernel, v.files.initrd} {
		digest, err := digestOf(file)
		if err != nil {
			return "", err
		}
		basis += "file " + digest + "\n"
	}
	return basis, nil
}

// describeCPU takes the first processor's lines of /proc/cpuinfo.
func describeCPU(info io.Reader) (string, error) {
	var cpu strings.Builder
	lines := bufio.NewScanner(info)
	lines.Buffer(nil, 1<<20) // one line holds all flags
	for lines.Scan() && (lines.Text() != "" || cpu.Len() == 0) {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if key = strings.TrimSpace(key); slices.Contains(cpuKeys, key) {
			fmt.Fprintf(&cpu, "%s:%s\n", key, value)
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read cpuinfo: %w", err)
	}
	if cpu.Len() == 0 {
		return "", fmt.Errorf("read cpuinfo: it names no processor")
	}
	return cpu.String(), nil
}

// digestOf is the SHA-256 of a boot file. It is kept beside the file, which never
// changes under its name: hashing a kernel at each start costs a second on an
// emulated host.
func digestOf(path string) (string, error) {
	kept := path + ".sha256"
	if digest, err := os.ReadFile(kept); err == nil && len(digest) == hex.EncodedLen(sha256.Size) {
		return string(digest), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	return digest, os.WriteFile(kept, []byte(digest), 0o400)
}
