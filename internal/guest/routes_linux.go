package guest

import (
	"context"
	"io"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// forgetWait bounds how long a forget waits for a killed program to end.
const forgetWait = 10 * time.Second

type handler func(a *Agent, w *reply, r *request) error

var routes = map[string]handler{
	guestwire.RouteEcho:      (*Agent).serveEcho,
	guestwire.RouteConfigure: (*Agent).serveConfigure,
	guestwire.RouteStart:     (*Agent).serveStart,
	guestwire.RoutePull:      (*Agent).servePull,
	guestwire.RouteSignal:    (*Agent).serveSignal,
	guestwire.RouteForget:    (*Agent).serveForget,
	guestwire.RouteReadFile:  (*Agent).serveReadFile,
	guestwire.RouteWriteFile: (*Agent).serveWriteFile,
}

// handle finds the route of a request and answers it.
func (a *Agent) handle(w *reply, r *request) {
	for route, serve := range routes {
		method, pattern, _ := strings.Cut(route, " ")
		if method != r.method || !r.match(pattern) {
			continue
		}
		if err := serve(a, w, r); err != nil {
			w.refuse(err)
		}
		return
	}
	w.refuse(refuse(guestwire.BadRequest, "no such route"))
}

// match compares the path with a pattern and notes {id}.
func (r *request) match(pattern string) bool {
	want, got := strings.Split(pattern, "/"), strings.Split(r.path, "/")
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if want[i] == "{id}" {
			r.id = got[i]
		} else if want[i] != got[i] {
			return false
		}
	}
	return true
}

// validID is what may name an execution, and with it a cgroup.
func validID(id string) bool {
	for _, c := range id {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && c != '-' {
			return false
		}
	}
	return id != "" && len(id) <= 64
}

func (a *Agent) serveEcho(w *reply, r *request) error {
	text := r.query.Get("text")
	if len(text) > 64 {
		return refuse(guestwire.BadRequest, "text over 64 bytes")
	}
	w.header(200, "application/octet-stream", int64(len(text)))
	_, err := io.WriteString(w, text)
	return err
}

func (a *Agent) serveConfigure(w *reply, r *request) error {
	var conf guestwire.Configure
	if err := decode(r.body, &conf); err != nil {
		return err
	}
	answer, err := a.applyConfigure(conf)
	if err != nil {
		return err
	}
	w.json(answer)
	return nil
}

// checkConfigure refuses what no guest can be made of.
func checkConfigure(conf guestwire.Configure) error {
	switch {
	case conf.Generation < 1:
		return refuse(guestwire.BadRequest, "generation is under 1")
	case !validHostname(conf.Hostname):
		return refuse(guestwire.BadRequest, "hostname is not 1 to 63 letters, digits and inner hyphens")
	case len(conf.Entropy) < 32 || len(conf.Entropy) > 4096:
		return refuse(guestwire.BadRequest, "entropy is not 32 to 4096 bytes")
	case !path.IsAbs(conf.Workdir) || len(conf.Workdir) > guestwire.MaxPath || strings.ContainsRune(conf.Workdir, 0):
		return refuse(guestwire.BadRequest, "workdir is not absolute")
	case conf.TimeNS <= 0:
		return refuse(guestwire.BadRequest, "time is not after 1970")
	}
	return checkStart(guestwire.Start{Cmd: "true", User: conf.User, Env: conf.Env})
}

func validHostname(name string) bool {
	return validID(name) && len(name) < 64 && !strings.Contains(name, "_") &&
		!strings.HasPrefix(name, "-") && !strings.HasSuffix(name, "-")
}

func (a *Agent) serveStart(w *reply, r *request) error {
	if !validID(r.id) {
		return refuse(guestwire.BadRequest, "id")
	}
	var start guestwire.Start
	if err := decode(r.body, &start); err != nil {
		return err
	}
	e, err := a.start(r.id, start)
	if err != nil {
		return err
	}
	return a.pull(w, e, start.Pull)
}

func (a *Agent) pull(w *reply, e *execution, pull guestwire.Pull) error {
	return e.pull(a.life, pull, func() io.Writer {
		w.header(200, "application/octet-stream", -1)
		return w
	})
}

func (a *Agent) servePull(w *reply, r *request) error {
	e, err := a.find(r.id)
	if err != nil {
		return err
	}
	var pull guestwire.Pull
	if err := decode(r.body, &pull); err != nil {
		return err
	}
	return a.pull(w, e, pull)
}

func (a *Agent) serveSignal(w *reply, r *request) error {
	e, err := a.find(r.id)
	if err != nil {
		return err
	}
	var signal guestwire.Signal
	if err := decode(r.body, &signal); err != nil {
		return err
	}
	if err := e.signal(signal.Signal); err != nil {
		return err
	}
	w.json(nil)
	return nil
}

func (a *Agent) serveForget(w *reply, r *request) error {
	e, err := a.find(r.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.life, forgetWait)
	defer cancel()
	if err := e.forget(ctx); err != nil {
		return err
	}
	w.json(nil)
	return nil
}

// filePath takes the path of a file request.
func filePath(query url.Values) (string, error) {
	name := query.Get("path")
	if name == "" || len(name) > guestwire.MaxPath || strings.ContainsRune(name, 0) {
		return "", refuse(guestwire.BadRequest, "path is empty, too long or has a NUL byte")
	}
	return name, nil
}
