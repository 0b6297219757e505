package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/microvmd/microvm/internal/fault"
)

// checkQuery refuses query parameters that the operation does not have, and
// those that come twice: of two values one would be dropped silently.
func checkQuery(r *http.Request, to route) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fault.Wrap(err, fault.ParameterInvalid, "the query is not of the form name=value&name=value with percent-encoding; encode it")
	}
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	sort.Strings(names) // the first by name, so that a repeat says the same
	for _, name := range names {
		values := query[name]
		switch {
		case !to.query[name]:
			return fault.Param(printable(name), "there is no query parameter %q here; %s", printable(name), offer("it takes", to.query))
		case len(values) > 1:
			return fault.Param(name, "%s came %d times; send it once", name, len(values))
		case values[0] == "":
			return fault.Param(name, "%s is empty; give it a value or leave it out", name)
		case !to.bytes[name] && !utf8.ValidString(values[0]):
			return fault.Param(name, "%s is not UTF-8; encode it so", name)
		}
	}
	return nil
}

// offer names what there is, in order.
func offer(words string, names map[string]bool) string {
	if len(names) == 0 {
		return "leave it out"
	}
	list := make([]string, 0, len(names))
	for name := range names {
		list = append(list, name)
	}
	sort.Strings(list)
	return words + " " + strings.Join(list, ", ")
}

// printable makes a caller's name fit to be shown: short, and valid UTF-8.
func printable(name string) string {
	const most = 64
	name = strings.ToValidUTF8(name, "\uFFFD")
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "..."
	}
	return name
}

// checkHeader refuses bodies that would be taken for something else.
func checkHeader(r *http.Request, to route) error {
	if !to.json && !to.stream || to.json && !to.bodied && r.ContentLength == 0 {
		return nil
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return fault.New(fault.BodyInvalid, "a body with Content-Encoding is not taken; send it plain")
	}
	given := r.Header.Get("Content-Type")
	if to.stream && given == "" {
		return nil // curl -T and others send none with bytes
	}
	want := []string{"application/json"}
	if to.stream {
		want = to.types
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || !slices.Contains(want, kind) || (params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8")) {
		return fault.New(fault.BodyInvalid, "the body's type is not taken here; send 'Content-Type: %s'", want[0])
	}
	return nil
}

// checkNoBody refuses a body where none is taken: its fields would be ignored
// silently. An empty object, which some clients send with every POST, has none.
func checkNoBody(r *http.Request) error {
	const most = 64 // bytes
	content, err := io.ReadAll(io.LimitReader(r.Body, most))
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	text := strings.Join(strings.Fields(string(content)), "")
	if len(content) == most || text != "" && text != "{}" {
		return fault.New(fault.BodyInvalid, "this route takes no body; leave it out")
	}
	return nil
}

// readJSON reads a bounded body and checks what encoding/json would let pass:
// invalid UTF-8, keys that come twice, and bytes after the value.
func readJSON(r *http.Request, limit int64) (io.ReadCloser, error) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	content, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	if int64(len(content)) > limit {
		return nil, tooLarge(limit)
	}
	if len(bytes.TrimSpace(content)) == 0 {
		return nil, fault.New(fault.BodyInvalid, "the body is empty; send one JSON object")
	}
	if err := checkJSON(content); err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

func tooLarge(limit int64) error {
	return fault.New(fault.PayloadTooLarge, "the body is over %d bytes; send a smaller one, or a file through PUT files/content", limit)
}

// frame is one open object or array of a JSON text.
type frame struct {
	keys  map[string]bool // nil in an array
	key   string          // the last one
	value bool            // a value comes next, not a key
	index int             // of the next element of an array
}

// Both are far over what any request needs. maxDepth keeps a path in an error
// short; maxValues keeps small what the validator and the decoder make of a
// body: a list of 4 million zeros took 300 MB.
const (
	maxDepth  = 32
	maxValues = 10_000
)

// checkJSON refuses what is not exactly one JSON value, or not unambiguous.
func checkJSON(content []byte) error {
	if !utf8.Valid(content) {
		return fault.New(fault.BodyInvalid, "the body is not UTF-8; encode it so")
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var open []frame
	for tokens := 0; ; tokens++ {
		token, err := decoder.Token()
		if err != nil {
			return notJSON(err)
		}
		if tokens > maxValues {
			return fault.New(fault.BodyInvalid, "the body holds over %d keys and values; send a smaller one", maxValues)
		}
		switch token {
		case json.Delim('{'):
			open = append(open, frame{keys: map[string]bool{}})
		case json.Delim('['):
			open = append(open, frame{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
			finishValue(open)
		default:
			if name, ok := token.(string); ok && len(open) > 0 && open[len(open)-1].keys != nil && !open[len(open)-1].value {
				top := &open[len(open)-1]
				top.key = name
				if top.keys[name] {
					return fault.Param(pathOf(open), "the key %q comes twice in one object; send it once", printable(name))
				}
				top.keys[name], top.value = true, true
				continue
			}
			finishValue(open)
		}
		if len(open) > maxDepth {
			return fault.New(fault.BodyInvalid, "the body is nested over %d deep; send a flatter one", maxDepth)
		}
		if len(open) == 0 {
			break
		}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fault.New(fault.BodyInvalid, "something follows the JSON object; send one object and nothing else")
	}
	return nil
}

func finishValue(open []frame) {
	if len(open) == 0 {
		return
	}
	top := &open[len(open)-1]
	top.value = false
	top.index++
}

func pathOf(open []frame) string {
	parts := make([]string, 0, len(open))
	for _, f := range open {
		if f.keys == nil {
			parts = append(parts, strconv.Itoa(f.index))
		} else {
			parts = append(parts, printable(f.key))
		}
	}
	return fieldName(parts)
}

// fieldName is the name of a field of a body as errors have it. The files of a
// batch, the one list of objects that there is, are numbered in brackets.
func fieldName(parts []string) string {
	if len(parts) > 1 && parts[0] == "files" {
		return strings.Join(append([]string{"files[" + parts[1] + "]"}, parts[2:]...), ".")
	}
	return strings.Join(parts, ".")
}

func notJSON(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fault.Wrap(err, fault.BodyInvalid, "the body is not JSON at byte %d; send one JSON object", syntax.Offset)
	}
	return fault.Wrap(err, fault.BodyInvalid, "the body is not whole JSON; send one JSON object")
}
