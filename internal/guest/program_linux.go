package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// defaultPath is PATH where neither image nor caller sets one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// program is everything that the kernel needs to start one.
type program struct {
	path string
	argv []string
	env  []string
	dir  string
	who  account
}

// prepare turns a request into a program, or a refusal that names what is
// wrong: the user, the directory or the command, in this order.
func (a *Agent) prepare(conf guestwire.Configure, start guestwire.Start) (program, error) {
	if err := checkStart(start); err != nil {
		return program{}, err
	}
	name := start.User
	if name == "" {
		name = conf.User
	}
	who, err := a.lookup(name, conf.User)
	if err != nil {
		return program{}, err
	}
	env := environment(conf.Env, who, start.Env)
	p := program{
		argv: append([]string{start.Cmd}, start.Args...),
		env:  flatten(env),
		dir:  a.under(absolute(conf.Workdir, start.Cwd)),
		who:  who,
	}
	err = who.do(func() error {
		if err := checkDirectory(p.dir); err != nil {
			return err
		}
		p.path, err = lookupCommand(start.Cmd, p.dir, env["PATH"])
		return err
	})
	return p, err
}

// checkStart refuses what no program can be started with.
func checkStart(start guestwire.Start) error {
	bad := start.Cmd == "" || len(start.Cwd) > guestwire.MaxPath
	for _, s := range slices.Concat(start.Args, []string{start.Cmd, start.Cwd, start.User}) {
		bad = bad || strings.ContainsRune(s, 0)
	}
	for key, value := range start.Env {
		bad = bad || key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0)
	}
	if bad {
		return refuse(guestwire.BadRequest, "empty command, or a NUL byte")
	}
	return nil
}

// environment is the image's, then what belongs to the user, then the
// caller's; the later wins.
func environment(image map[string]string, who account, caller map[string]string) map[string]string {
	env := map[string]string{"PATH": defaultPath}
	for key, value := range image {
		env[key] = value
	}
	if who.home != "" {
		env["HOME"] = who.home
	}
	if who.shell != "" {
		env["SHELL"] = who.shell
	}
	env["USER"], env["LOGNAME"] = who.name, who.name
	for key, value := range caller {
		env[key] = value
	}
	return env
}

func flatten(env map[string]string) []string {
	flat := make([]string, 0, len(env))
	for key, value := range env {
		flat = append(flat, key+"="+value)
	}
	slices.Sort(flat)
	return flat
}

func absolute(base, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

// do calls fn with the user's rights on files. The rights belong to one
// thread; it is never used again and ends with its goroutine.
func (a account) do(fn func() error) error {
	if a.same || a.uid == 0 {
		return fn()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not serve anybody else
		done <- func() error {
			if err := a.becomeOnThread(); err != nil {
				return refuse(guestwire.StartFailed, err.Error())
			}
			return fn()
		}()
	}()
	return <-done
}

// becomeOnThread gives the calling thread the user's groups and file system
// ids; with the uid the kernel also drops the capabilities that would bypass
// permission (setfsuid(2)). setgroups is called raw because the package
// syscall would change every thread.
func (a account) becomeOnThread() error {
	groups := append([]uint32{a.gid}, a.groups...)
	if err := setThreadGroups(groups); err != nil {
		return err
	}
	if err := unix.Setfsgid(int(a.gid)); err != nil {
		return err
	}
	return unix.Setfsuid(int(a.uid))
}

// checkDirectory reports bad_directory unless the caller's user may work there.
func checkDirectory(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() || !mayExecute(dir) {
		return refuse(guestwire.BadDirectory, dir)
	}
	return nil
}

// lookupCommand finds cmd as execvp(3) does, except that it never takes a
// shell for a file without a format: a name with a slash is a path (relative
// to dir), any other is looked for in PATH, and a file that is there but may
// not be executed counts only when no later directory has a better one.
func lookupCommand(cmd, dir, path string) (string, error) {
	if strings.Contains(cmd, "/") {
		found := absolute(dir, cmd)
		return found, checkCommand(found)
	}
	result := error(refuse(guestwire.CommandNotFound, cmd))
	for _, entry := range filepath.SplitList(path) {
		found := filepath.Join(absolute(dir, entry), cmd)
		err := checkCommand(found)
		if err == nil {
			return found, nil
		}
		var refusal *guestwire.Error
		if errors.As(err, &refusal) && refusal.Code == guestwire.PermissionDenied {
			result = err
		}
	}
	return "", result
}

func checkCommand(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return refuse(guestwire.PermissionDenied, path)
	case err != nil:
		return refuse(guestwire.CommandNotFound, path)
	case !info.Mode().IsRegular() || !mayExecute(path):
		return refuse(guestwire.PermissionDenied, path)
	}
	return nil
}

// mayExecute asks the kernel with the calling thread's rights.
func mayExecute(path string) bool {
	return unix.Faccessat2(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS) == nil
}

// startRefusal names what the kernel said when it was asked to start a program
// that looked fine. A script or program whose interpreter is missing is a
// command that was not found.
func startRefusal(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return refuse(guestwire.CommandNotFound, err.Error())
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC): // 126 to a shell, both
		return refuse(guestwire.PermissionDenied, err.Error())
	default:
		return refuse(guestwire.StartFailed, err.Error())
	}
}
