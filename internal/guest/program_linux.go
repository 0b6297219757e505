package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// defaultPath is PATH where neither image nor caller sets one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// program is everything that the kernel needs to start one.
type program struct {
	path    string
	argv    []string
	env     []string
	dir     string
	who     account
	search  string // PATH
	guessed bool   // path was found with root's rights and not the user's
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
	env := environment(conf.Env, who, start)
	p := program{
		argv:   append([]string{start.Cmd}, start.Args...),
		env:    flatten(env),
		dir:    a.under(absolute(conf.Workdir, start.Cwd)),
		who:    who,
		search: env["PATH"],
	}
	if who.root() {
		return p, p.resolve()
	}
	if p.path, p.guessed = p.guess(); !p.guessed {
		return p, p.resolve()
	}
	return p, nil
}

// guess finds the command with the agent's rights, which are enough to start
// it: the kernel checks the user's then. It says nothing unless it is sure that
// the user finds no other; a refusal is never made of a guess.
func (p *program) guess() (path string, sure bool) {
	cmd := p.argv[0]
	if strings.Contains(cmd, "/") {
		return absolute(p.dir, cmd), true
	}
	for _, entry := range filepath.SplitList(p.search) {
		found := filepath.Join(absolute(p.dir, entry), cmd)
		switch err := unix.Faccessat2(unix.AT_FDCWD, found, unix.X_OK, unix.AT_EACCESS); {
		case err == nil:
			return found, true
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR): // a file system may show the user more than root
			return "", false
		}
	}
	return "", false
}

// resolve finds the command with the user's rights, or says why there is none.
func (p *program) resolve() error {
	p.guessed = false
	return p.who.do(func() error {
		if err := checkDirectory(p.dir); err != nil {
			return err
		}
		var err error
		p.path, err = lookupCommand(p.argv[0], p.dir, p.search)
		return err
	})
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
	if start.TTY != nil {
		return checkSize(*start.TTY)
	}
	return nil
}

// environment is the image's, then what belongs to the user, then the
// caller's; the later wins.
func environment(image map[string]string, who account, start guestwire.Start) map[string]string {
	env := map[string]string{"PATH": defaultPath}
	if start.TTY != nil {
		env["TERM"] = defaultTerm
	}
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
	for key, value := range start.Env {
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

// root says that the account has all the rights that the agent has.
func (a account) root() bool { return a.same || a.uid == 0 }

// do calls fn with the user's rights on files. The rights belong to one
// thread; it is never used again and ends with its goroutine.
func (a account) do(fn func() error) error {
	if a.root() {
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
