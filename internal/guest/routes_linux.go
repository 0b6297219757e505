package guest

import (
	"context"
	"errors"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// forgetWait bounds how long a forget waits for a killed program to end.
const forgetWait = 10 * time.Second

// route is one of the agent's: a method, and a path before and after {id}.
type route struct {
	method, before, after string
	id                    bool // the path has an {id}
	serve                 func(a *Agent, w *reply, r *request) error
}

// routes are few, and tried in turn.
var routes = []route{
	newRoute(guestwire.RouteStart, (*Agent).serveStart),
	newRoute(guestwire.RoutePull, (*Agent).servePull),
	newRoute(guestwire.RouteSignal, (*Agent).serveSignal),
	newRoute(guestwire.RouteStdin, (*Agent).serveStdin),
	newRoute(guestwire.RouteResize, (*Agent).serveResize),
	newRoute(guestwire.RouteForget, (*Agent).serveForget),
	newRoute(guestwire.RouteReadFile, (*Agent).serveReadFile),
	newRoute(guestwire.RouteWriteFile, (*Agent).serveWriteFile),
	newRoute(guestwire.RouteWriteFiles, (*Agent).serveWriteFiles),
	newRoute(guestwire.RouteStat, (*Agent).serveStat),
	newRoute(guestwire.RouteMakeDir, (*Agent).serveMakeDir),
	newRoute(guestwire.RouteMove, (*Agent).serveMove),
	newRoute(guestwire.RouteRemove, (*Agent).serveRemove),
	newRoute(guestwire.RouteList, (*Agent).serveList),
	newRoute(guestwire.RouteReadArchive, (*Agent).serveReadArchive),
	newRoute(guestwire.RouteWriteArchive, (*Agent).serveWriteArchive),
	newRoute(guestwire.RouteWatch, (*Agent).serveWatch),
	newRoute(guestwire.RouteEcho, (*Agent).serveEcho),
	newRoute(guestwire.RouteConfigure, (*Agent).serveConfigure),
}

func newRoute(pattern string, serve func(a *Agent, w *reply, r *request) error) route {
	method, path, _ := strings.Cut(pattern, " ")
	before, after, id := strings.Cut(path, "{id}")
	return route{method: method, before: before, after: after, id: id, serve: serve}
}

// handle finds the route of a request and answers it.
func (a *Agent) handle(w *reply, r *request) {
	for _, known := range routes {
		if !known.match(r) {
			continue
		}
		if err := known.serve(a, w, r); err != nil {
			w.refuse(err)
		}
		return
	}
	w.refuse(refuse(guestwire.BadRequest, "no such route"))
}

// match says whether a request is for the route, and notes its {id}.
func (t route) match(r *request) bool {
	if r.method != t.method {
		return false
	}
	if !t.id {
		return r.path == t.before
	}
	rest, ok := strings.CutPrefix(r.path, t.before)
	if ok {
		rest, ok = strings.CutSuffix(rest, t.after)
	}
	if ok = ok && !strings.Contains(rest, "/"); ok {
		r.id = rest
	}
	return ok
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
	return e.pull(a.life, start.Pull, w)
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
	return e.pull(a.life, pull, w)
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

func (a *Agent) serveStdin(w *reply, r *request) error {
	e, err := a.find(r.id)
	if err != nil {
		return err
	}
	f, err := readFeed(r)
	if err != nil {
		return err
	}
	if e.input == nil {
		return refuse(guestwire.NoStdin, e.id)
	}
	taken, err := e.input.put(a.life, f)
	if err != nil {
		return err
	}
	w.json(taken)
	return nil
}

// readFeed reads a stdin request but for its body, whose length must be told.
func readFeed(r *request) (feed, error) {
	offset, err1 := strconv.ParseInt(r.query.Get("offset"), 10, 64)
	end, err2 := strconv.ParseBool(r.query.Get("close"))
	wait, err3 := strconv.Atoi(r.query.Get("wait_ms"))
	if errors.Join(err1, err2, err3) != nil || offset < 0 || offset > math.MaxInt64-guestwire.MaxStdin || wait < 0 || wait > guestwire.MaxStdinWait {
		return feed{}, refuse(guestwire.BadRequest, "offset, close or wait_ms")
	}
	if r.length < 0 || r.length > guestwire.MaxStdin {
		return feed{}, refuse(guestwire.BadRequest, "body is too long, or does not say its length")
	}
	return feed{
		offset: offset, size: r.length, body: r.body, end: end, until: time.Now().Add(time.Duration(wait) * time.Millisecond),
	}, nil
}

func (a *Agent) serveResize(w *reply, r *request) error {
	e, err := a.find(r.id)
	if err != nil {
		return err
	}
	var size guestwire.Size
	if err := decode(r.body, &size); err != nil {
		return err
	}
	if err := e.resize(size); err != nil {
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
