package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// measureLanguages measures the first programs that were asked for.
func (r *run) measureLanguages(ctx context.Context) ([]LanguageResult, error) {
	wanted, err := findLanguages(r.Only)
	if err != nil {
		return nil, err
	}
	var all []LanguageResult
	for _, l := range wanted {
		result, err := r.measureLanguage(ctx, l)
		if err != nil {
			return nil, err
		}
		all = append(all, result)
	}
	return all, nil
}

func (r *run) measureLanguage(ctx context.Context, l language) (result LanguageResult, err error) {
	back := &undo{}
	defer func() {
		if failed := back.run(); failed != nil {
			err = errors.Join(err, fmt.Errorf("clean up after %s: %w", l.name, failed))
		}
	}()
	say(r.Progress, "%s: prepare\n", l.name)
	tree, err := r.openTree(ctx, l.image, back)
	if err != nil {
		return result, fmt.Errorf("prepare %s: %w", l.name, interrupted(ctx, err))
	}
	memory := languageMemory
	shape := microvm.SandboxCreate{Image: l.image, MemMib: &memory}
	if err := r.awaitTemplate(ctx, shape); err != nil {
		return result, fmt.Errorf("prepare %s: wait for template: %w", l.name, err)
	}
	return l.measure(ctx, r.Rounds, r.Progress,
		func(ctx context.Context) (time.Duration, error) { return tree.first(ctx, l) },
		func(ctx context.Context) (time.Duration, error) {
			return r.first(ctx, l, shape, microvm.SandboxBootSnapshot)
		},
		func(ctx context.Context) (time.Duration, error) {
			return r.first(ctx, l, shape, microvm.SandboxBootCold)
		},
	)
}

// first is one sandbox from its create to the end of its first program.
func (r *run) first(ctx context.Context, l language, shape microvm.SandboxCreate, boot microvm.SandboxBoot) (took time.Duration, err error) {
	began := time.Now()
	sb, err := r.createOf(ctx, shape, boot == microvm.SandboxBootCold)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.remove(ctx, sb.ID)) }()
	if _, err := r.Client.Files.Write(ctx, sb.ID, l.file, []byte(l.source)); err != nil {
		return 0, err
	}
	done, err := r.Client.Run(ctx, sb.ID, l.command[0], l.command[1:]...)
	took = time.Since(began)
	if err == nil {
		err = done.Err()
	}
	if err != nil {
		return 0, err
	}
	if got := bootOf(sb); got != boot {
		return 0, fmt.Errorf("a sandbox came up by %q, want %q", got, boot)
	}
	if done.ExitCode == nil || *done.ExitCode != 0 {
		return 0, fmt.Errorf("%s failed: %.500q", strings.Join(l.command, " "), done.Stderr)
	}
	return took, l.greeted(done.Stdout)
}

// tree is an image's file system, mounted on the host: what runs in it runs on
// the host itself. Only this bench's programs do; the image was built here.
type tree struct {
	lower, dir string // the mounted image, and where rounds have their own
	image      imageFile
}

// imageFile is what of image.json decides how a program runs.
type imageFile struct {
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	UID     uint32            `json:"uid"`
	GID     uint32            `json:"gid"`
	Format  string            `json:"format"`
}

func (r *run) openTree(ctx context.Context, image string, back *undo) (*tree, error) {
	from := filepath.Join(r.StateDir, "images", image)
	text, err := os.ReadFile(filepath.Join(from, "image.json"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("there is no image %s on this node; microvm setup --image %s", image, image)
		}
		return nil, err
	}
	t := &tree{dir: filepath.Join(r.StateDir, folder, "tree")}
	t.lower = filepath.Join(t.dir, "lower")
	if err := json.Unmarshal(text, &t.image); err != nil {
		return nil, fmt.Errorf("read image.json: %w", err)
	}
	if err := os.MkdirAll(t.lower, 0o755); err != nil {
		return nil, err
	}
	back.add("remove tree", func() error { return os.RemoveAll(t.dir) })
	// mount loads a file system, but says that it may not where loop devices are not there yet. Built in, they are no modules.
	_ = exec.CommandContext(ctx, "modprobe", "-a", "loop", t.image.Format, "overlay").Run() //nolint:gosec // what is missing, mount tells
	mount := exec.CommandContext(ctx, "mount", "-t", t.image.Format, "-o", "ro,loop", filepath.Join(from, "rootfs."+t.image.Format), t.lower)
	if said, err := mount.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mount image: %w: %s", err, bytes.TrimSpace(said))
	}
	back.add("unmount image", func() error { return unix.Unmount(t.lower, unix.MNT_DETACH) })
	return t, nil
}

// first runs the program in a fresh layer over the image, as a fresh sandbox
// has one. The clock stands for what is mounted.
func (t *tree) first(ctx context.Context, l language) (took time.Duration, err error) {
	back := &undo{}
	defer func() { err = errors.Join(err, back.run()) }()
	round := filepath.Join(t.dir, "round")
	root, upper, work := filepath.Join(round, "root"), filepath.Join(round, "upper"), filepath.Join(round, "work")
	for _, dir := range []string{round, root, upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return 0, err
		}
		if dir == round {
			back.add("remove layer", func() error { return os.RemoveAll(round) })
		}
	}
	mount := func(source, target, kind, options string) error {
		if err := unix.Mount(source, target, kind, unix.MS_NOSUID, options); err != nil {
			return fmt.Errorf("mount %s: %w", kind, err)
		}
		back.add("unmount "+kind, func() error { return unix.Unmount(target, unix.MNT_DETACH) })
		return nil
	}
	if err := mount("overlay", root, "overlay", "lowerdir="+t.lower+",upperdir="+upper+",workdir="+work); err != nil {
		return 0, err
	}
	if err := mount("proc", filepath.Join(root, "proc"), "proc", ""); err != nil {
		return 0, err
	}
	if err := mount("devtmpfs", filepath.Join(root, "dev"), "devtmpfs", ""); err != nil {
		return 0, err
	}
	file := filepath.Join(root, t.image.Workdir, l.file)
	if err := os.WriteFile(file, []byte(l.source), 0o644); err != nil { //nolint:gosec // for another user
		return 0, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join("/usr/bin", l.command[0]), l.command[1:]...) //nolint:gosec // of this file's own list
	cmd.Dir = t.image.Workdir
	for name, value := range t.image.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: t.image.UID, Gid: t.image.GID}}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	printed, err := cmd.Output()
	took = time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("%s on the host: %w: %.500q", strings.Join(l.command, " "), err, stderr.String())
	}
	return took, l.greeted(string(printed))
}
