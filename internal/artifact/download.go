package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// limits bound what a download may cost. Tests make them small.
type limits struct {
	attempts  int                         // in a row without a new byte
	pause     func(try int) time.Duration // before the next attempt
	window    time.Duration               // a transfer must bring windowMin bytes in each window
	windowMin int64                       // bytes
}

var defaultLimits = limits{
	attempts:  4,
	pause:     func(try int) time.Duration { return time.Second << min(try, 4) },
	window:    20 * time.Second,
	windowMin: 64 << 10,
}

// maxRedirects is enough for a release page that sends to its object store.
const maxRedirects = 5

func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	transport.TLSHandshakeTimeout = 10 * time.Second
	transport.ResponseHeaderTimeout = 20 * time.Second
	transport.MaxResponseHeaderBytes = 64 << 10
	transport.DisableCompression = true // sizes and ranges are of the bytes on the wire
	return &http.Client{Transport: transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return permanent{fmt.Errorf("more than %d redirects", maxRedirects)}
		}
		if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return permanent{fmt.Errorf("redirect from https to %s", req.URL.Scheme)}
		}
		return nil
	}}
}

// permanent marks an error that a repeat would meet again.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// partial is what is known about a download that is not finished. It lies
// beside the partial file, which has the wanted checksum as its name.
type partial struct {
	URL       string `json:"url"`
	Validator string `json:"validator"` // strong ETag or Last-Modified, or empty
	Size      int64  `json:"size"`      // bytes of the whole, 0 unknown
}

// fetch downloads one file, going on with a partial one, and returns where it
// lies: checked against wanted. The caller holds the lock of its artifact and
// removes the file. On a wrong checksum nothing is left.
func (s *Store) fetch(ctx context.Context, address, wanted string, limit int64, report func(string)) (string, error) {
	name := filepath.Join(s.dir, partialFolder, wanted)
	shown := address
	if u, err := url.Parse(address); err == nil {
		shown = u.Redacted()
	}
	// Attempts are counted since the file last grew by a worthwhile amount: a
	// long download may be cut often, a server that drips may not go on for ever.
	best := fileSize(name)
	for failures := 0; ; {
		resumed, err := s.attempt(ctx, address, name, limit, report)
		if err == nil {
			sum, _, err := sumFile(name, limit)
			if err != nil {
				return "", fmt.Errorf("download %s: %w", shown, err)
			}
			if sum == wanted {
				return name, nil
			}
			discard(name)
			if resumed {
				// The server changed the file under its own validator, or our
				// partial file was damaged: once more, from the first byte.
				report("the resumed download has a wrong checksum; starting from the first byte")
				continue
			}
			return "", &ChecksumError{File: filepath.Base(shown), Wanted: wanted, Found: sum, From: shown}
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("download %s: %w", shown, context.Cause(ctx))
		}
		var never permanent
		if errors.As(err, &never) {
			return "", fmt.Errorf("download %s: %w", shown, err)
		}
		if size := fileSize(name); size >= best+s.limits.windowMin {
			best, failures = size, 0
		}
		failures++
		if unreachable(err) {
			failures++ // a host that cannot be reached at all is given up sooner
		}
		if failures >= s.limits.attempts {
			return "", fmt.Errorf("download %s: attempts in a row brought nothing; the last: %w", shown, err)
		}
		report(fmt.Sprintf("download cut at %d bytes, trying again: %v", fileSize(name), err))
		timer := time.NewTimer(s.limits.pause(failures))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

func unreachable(err error) bool {
	var dns *net.DNSError
	var dial *net.OpError
	return errors.As(err, &dns) || errors.As(err, &dial) && dial.Op == "dial"
}

func fileSize(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

func discard(name string) {
	_ = os.Remove(name)
	_ = os.Remove(name + ".json")
}

func readPartial(name string) (partial, int64) {
	var known partial
	text, err := readSmall(name + ".json")
	have := fileSize(name)
	if err != nil || json.Unmarshal(text, &known) != nil || have == 0 {
		return partial{}, 0
	}
	return known, have
}

// attempt makes one request and appends what it brings. It says whether it
// went on with bytes of an earlier attempt.
func (s *Store) attempt(ctx context.Context, address, name string, limit int64, report func(string)) (resumed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	known, have := readPartial(name)
	if known.URL != address || known.Validator == "" && known.Size == 0 || known.Size > 0 && have > known.Size {
		have = 0
	}
	if have > 0 && have == known.Size {
		return true, nil // complete: only the check was missing
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return false, permanent{err}
	}
	request.Header.Set("Accept-Encoding", "identity")
	if have > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
		if known.Validator != "" {
			request.Header.Set("If-Range", known.Validator)
		}
	}
	response, err := s.client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close() //nolint:errcheck // only read

	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	switch response.StatusCode {
	case http.StatusOK:
		have = 0
		known = partial{URL: address, Validator: validator(response.Header), Size: max(response.ContentLength, 0)}
	case http.StatusPartialContent:
		start, total, ok := contentRange(response.Header.Get("Content-Range"))
		if have == 0 || !ok || start != have || known.Size > 0 && total != known.Size {
			discard(name)
			return false, fmt.Errorf("server answered with range %.80q, wanted one from byte %d of %d",
				response.Header.Get("Content-Range"), have, known.Size)
		}
		known.Size = total
		flags = os.O_WRONLY | os.O_APPEND
	case http.StatusRequestedRangeNotSatisfiable:
		discard(name)
		return false, errors.New("server has no such range; starting from the first byte")
	default:
		err := fmt.Errorf("server answered %s", response.Status)
		if response.StatusCode < 500 && response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusRequestTimeout {
			return false, permanent{err}
		}
		return false, err
	}
	if known.Size > limit {
		discard(name)
		return false, permanent{fmt.Errorf("is %d bytes, more than the %d allowed", known.Size, limit)}
	}
	text, err := json.Marshal(known)
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(name+".json", text, 0o644); err != nil {
		return false, permanent{err}
	}
	file, err := os.OpenFile(name, flags, 0o644)
	if err != nil {
		return false, permanent{err}
	}
	err = s.receive(ctx, cancel, file, response.Body, progress{have: have, total: known.Size, limit: limit, report: report})
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = permanent{closeErr} // a full disk is not mended by asking again
	}
	var never permanent
	if errors.As(err, &never) {
		discard(name)
	}
	return have > 0, err
}

type progress struct {
	have, total, limit int64
	report             func(string)
}

// receive copies a body, and gives up when a window of time brought too
// little: a server that drips would otherwise hold us until the deadline.
func (s *Store) receive(ctx context.Context, cancel context.CancelCauseFunc, to io.Writer, from io.Reader, p progress) error {
	var count atomic.Int64
	count.Store(p.have)
	watched := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(watched)
		ticker := time.NewTicker(s.limits.window)
		defer ticker.Stop()
		last := p.have
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				now := count.Load()
				if now-last < s.limits.windowMin {
					cancel(fmt.Errorf("only %d bytes in %s", now-last, s.limits.window))
					return
				}
				last = now
			}
		}
	}()
	defer func() { close(stop); <-watched }()

	buffer := make([]byte, 128<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if count.Load()+int64(n) > p.limit {
				return permanent{fmt.Errorf("is larger than the %d bytes allowed", p.limit)}
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return permanent{err}
			}
			total := "unknown size"
			if p.total > 0 {
				total = fmt.Sprintf("%.1f MiB", float64(p.total)/(1<<20))
			}
			p.report(fmt.Sprintf("downloading, %.1f of %s", float64(count.Add(int64(n)))/(1<<20), total))
		}
		if errors.Is(err, io.EOF) {
			if p.total > 0 && count.Load() != p.total {
				return fmt.Errorf("connection ended at %d of %d bytes: %w", count.Load(), p.total, io.ErrUnexpectedEOF)
			}
			return nil
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
}

// validator picks what If-Range may use (RFC 9110, 13.1.5: no weak ETag).
func validator(header http.Header) string {
	if tag := header.Get("ETag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		return tag
	}
	return header.Get("Last-Modified")
}

// contentRange reads "bytes 5-9/10"; an unknown total is refused.
func contentRange(text string) (start, total int64, ok bool) {
	text, ok = strings.CutPrefix(text, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, whole, ok := strings.Cut(text, "/")
	first, _, ok2 := strings.Cut(span, "-")
	start, err1 := strconv.ParseInt(first, 10, 64)
	total, err2 := strconv.ParseInt(whole, 10, 64)
	return start, total, ok && ok2 && err1 == nil && err2 == nil
}
