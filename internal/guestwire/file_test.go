package guestwire

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func b64(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// entryText is an entry as an agent sends it; change replaces fields.
func entryText(path string, change ...string) string {
	text := fmt.Sprintf(`{"path":%q,"type":"file","size":3,"mode":"0644","uid":0,"gid":0,"modified_ns":-5,"inode":7}`, b64(path))
	return strings.NewReplacer(change...).Replace(text)
}

var dirText = entryText("/w", `"file"`, `"directory"`)

// bad is every way in which an entry can be impossible.
var bad = map[string]string{
	"no type":           entryText("/w/a", `"file"`, `""`),
	"unknown type":      entryText("/w/a", `"file"`, `"door"`),
	"negative size":     entryText("/w/a", `:3`, `:-3`),
	"too large":         entryText("/w/a", `:3`, `:9223372036854775808`),
	"no size":           entryText("/w/a", `:3`, `:"3"`),
	"negative owner":    entryText("/w/a", `"uid":0`, `"uid":-1`),
	"owner too large":   entryText("/w/a", `"gid":0`, `"gid":4294967296`),
	"no mode":           entryText("/w/a", `"0644"`, `""`),
	"short mode":        entryText("/w/a", `"0644"`, `"644"`),
	"no octal mode":     entryText("/w/a", `"0644"`, `"0648"`),
	"signed mode":       entryText("/w/a", `"0644"`, `"-644"`),
	"long mode":         entryText("/w/a", `"0644"`, `"100644"`),
	"target of a file":  entryText("/w/a", `"inode"`, `"target":"`+b64("x")+`","inode"`),
	"long target":       entryText("/w/a", `"file"`, `"symlink"`, `"inode"`, `"target":"`+b64(strings.Repeat("x", MaxTarget+1))+`","inode"`),
	"target with NUL":   entryText("/w/a", `"file"`, `"symlink"`, `"inode"`, `"target":"`+b64("a\x00b")+`","inode"`),
	"relative path":     entryText("w/a"),
	"no path":           entryText(""),
	"path goes up":      entryText("/w/../a"),
	"path with a dot":   entryText("/w/./a"),
	"path with slashes": entryText("/w//a"),
	"path that ends so": entryText("/w/a/"),
	"path with NUL":     entryText("/w/a\x00"),
	"long path":         entryText("/" + strings.Repeat("a", MaxEntryPath)),
	"no base64":         entryText("/w/a", b64("/w/a"), `not base64!`),
	"no object":         `[]`,
	"text":              `"file"`,
	"null":              `null`,
	"nothing":           ``,
	"half":              entryText("/w/a")[:40],
	"deep":              strings.Repeat("[", 20_000),
}

func TestImpossibleEntriesBreakTheProtocol(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, text := range bad {
		c := answer(200, text)
		errs := map[string]error{}
		_, errs["stat"] = c.Stat(ctx, "/w/a")
		_, errs["write"] = c.WriteFile(ctx, "/w/a", 0o644, strings.NewReader(""))
		_, errs["append"] = c.AppendFile(ctx, "/w/a", 0, 0o644, strings.NewReader(""))
		_, errs["mkdir"] = c.MakeDir(ctx, "/w/a", 0o755)
		_, errs["move"] = c.Move(ctx, Move{From: "x", To: "/w/a"})
		_, errs["batch"] = answer(200, `{"entries":[`+text+`]}`).WriteFiles(ctx, []NewFile{{Path: "/w/a"}})
		_, _, errs["list"] = answer(200, dirText+"\n"+text+"\n"+`{"more":false}`+"\n").List(ctx, List{Path: "/w", Depth: 1, Limit: 10})
		_, _, errs["listed"] = answer(200, text+"\n"+`{"more":false}`+"\n").List(ctx, List{Path: "/w/a", Depth: 1, Limit: 10})
		for call, err := range errs {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
	}
	good := entryText("/w/a")
	if entry, err := answer(200, good).Stat(ctx, "/w/a"); err != nil || entry != (Entry{Path: "/w/a", Type: TypeFile, Size: 3, Mode: "0644", ModifiedNS: -5, Inode: 7}) {
		t.Errorf("%+v %v", entry, err)
	}
}

// An answer for another path than the one that was asked for is none.
func TestEntriesAnswerForTheirPath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		asked, got string
		fine       bool
	}{
		{"/w/a", "/w/a", true},
		{"/w//a/.", "/w/a", true},
		{"/w/a", "/w/b", false},
		{"/w/a", "/x/w/a", false},
		{"a", "/w/a", true},
		{"a/b", "/w/a/b", true},
		{"./a/../b", "/w/b", true},
		{"b", "/w/ab", false},
		{"a/b", "/w/b", false},
		{".", "/w", true},
		{"..", "/", true},
		{"../a", "/a", true},
		{"\xff", "/w/\xff", true},
		{"\xff", "/w/\ufffd", false},
	} {
		entry, err := answer(200, entryText(c.got)).Stat(t.Context(), c.asked)
		if (err == nil) != c.fine || err != nil && !errors.Is(err, ErrProtocol) || err == nil && entry.Path != c.got {
			t.Errorf("%q for %q: %+v %v", c.got, c.asked, entry, err)
		}
	}
}

func TestImpossibleFileReplies(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := entryText("/w/a", `"file"`, `"directory"`)
	errs := map[string]error{}
	_, errs["wrote a directory"] = answer(200, dir).WriteFile(ctx, "/w/a", 0, strings.NewReader(""))
	_, errs["shorter than before"] = answer(200, entryText("/w/a")).AppendFile(ctx, "/w/a", 4, 0, strings.NewReader(""))
	one := []NewFile{{Path: "/w/a"}}
	_, errs["too few"] = answer(200, `{"entries":[]}`).WriteFiles(ctx, one)
	_, errs["too many"] = answer(200, `{"entries":[`+entryText("/w/a")+`,`+entryText("/w/a")+`]}`).WriteFiles(ctx, one)
	_, errs["other"] = answer(200, `{"entries":[`+entryText("/w/b")+`]}`).WriteFiles(ctx, one)
	_, errs["a directory"] = answer(200, `{"entries":[`+dir+`]}`).WriteFiles(ctx, one)
	for _, text := range []string{`{"entries":0}`, `{"entries":-1}`, `{"entries":2}`, `{}`, `{"entries":"1"}`, `[]`, `null`, ``, `   `, `{"entries":1} x`, `{"code":"made_up"}`} {
		_, errs["removed "+text] = answer(200, text).Remove(ctx, "/w/a", false)
	}
	for _, text := range []string{`{"entries":-1}`, `{"entries":1000001}`, `{"entries":1,"bytes":-1}`, `{"bytes":9223372036854775808}`} {
		_, errs["unpacked "+text] = answer(200, text).WriteArchive(ctx, "/w", false, false, strings.NewReader(""))
	}
	_, errs["too many signs"] = answer(200, strings.Repeat(" ", MaxSigns+1)+`{"entries":1}`).Remove(ctx, "/w/a", false)
	for name, err := range errs {
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if removed, err := answer(200, strings.Repeat(" ", MaxSigns)+`{"entries":1}`).Remove(ctx, "/w/a", false); err != nil || removed.Entries != 1 {
		t.Errorf("%+v %v", removed, err)
	}
	if _, err := answer(200, ` {"code":"disk_full","detail":"x"}`).Remove(ctx, "/w/a", false); !Refused(err, DiskFull) {
		t.Errorf("late refusal: %v", err)
	}
}

// A refusal keeps a short detail, which its text does not show.
func TestDetailsAreBounded(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		status, text := 400, fmt.Sprintf(`{"code":"unsafe_member","detail":%q}`, strings.Repeat("guest", 1000))
		if late {
			status, text = 200, "  "+text
		}
		_, err := answer(status, text).WriteArchive(t.Context(), "/w", false, false, strings.NewReader(""))
		var refusal *Error
		if !errors.As(err, &refusal) || len(refusal.Detail) != MaxDetail || strings.Contains(err.Error(), "guestguest") {
			t.Errorf("%v", err)
		}
	}
}

// fileReply is a reply to a read with a header that describes the file.
func fileReply(field string, length int64) *Client {
	return NewClient(transportFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: 200, ContentLength: length, Header: http.Header{FileHeader: {field}}, Body: io.NopCloser(&endless{}), Request: r,
		}, nil
	}))
}

func TestReadFileChecksItsReply(t *testing.T) {
	t.Parallel()
	about := func(size int64) string {
		return strings.Replace(entryText("", `:3`, fmt.Sprintf(`:%d`, size)), `"path":"",`, "", 1)
	}
	for name, c := range map[string]struct {
		field  string
		length int64
		part   Range
		fine   bool
	}{
		"whole":             {about(10), 10, Whole, true},
		"empty":             {about(0), 0, Whole, true},
		"part":              {about(10), 3, Range{4, 3}, true},
		"to the end":        {about(10), 6, Range{4, -1}, true},
		"over the end":      {about(10), 6, Range{4, 60}, true},
		"suffix":            {about(10), 3, Range{-3, -1}, true},
		"long suffix":       {about(10), 10, Range{math.MinInt64, math.MaxInt64}, true},
		"no length":         {about(10), -1, Whole, false},
		"too short":         {about(10), 9, Whole, false},
		"too long":          {about(10), 11, Whole, false},
		"not the part":      {about(10), 10, Range{4, 3}, false},
		"behind the end":    {about(10), 1, Range{11, -1}, false},
		"negative":          {about(-1), 0, Whole, false},
		"no description":    {"", 10, Whole, false},
		"no JSON":           {"x", 10, Whole, false},
		"a directory":       {strings.Replace(about(10), `"file"`, `"directory"`, 1), 10, Whole, false},
		"with a path":       {entryText("/w/a"), 3, Whole, false},
		"largest":           {about(math.MaxInt64), math.MaxInt64, Whole, true},
		"end of the larget": {about(math.MaxInt64), 1, Range{math.MaxInt64 - 1, math.MaxInt64}, true},
	} {
		body, info, err := fileReply(c.field, c.length).ReadFile(t.Context(), "a", c.part)
		if (err == nil) != c.fine || err != nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			body.Close()
			if info.Length != c.length || info.Offset < 0 || info.Offset+info.Length > info.Size {
				t.Errorf("%s: %+v", name, info)
			}
		}
	}
}

func TestListChecksItsReply(t *testing.T) {
	t.Parallel()
	lines := func(names ...string) string {
		text := dirText + "\n"
		for _, name := range names {
			text += entryText("/w/"+name) + "\n"
		}
		return text
	}
	const end = `{"more":true}` + "\n"
	for name, c := range map[string]struct {
		text string
		fine bool
	}{
		"nothing":                {lines() + end, true},
		"in order":               {lines("a", "a/b", "a.b", "b") + end, true},
		"out of order":           {lines("b", "a") + end, false},
		"by bytes, not by parts": {lines("a", "a.b", "a/b") + end, false},
		"twice":                  {lines("a", "a") + end, false},
		"too many":               {lines("a", "b", "c", "d", "e", "f") + end, false},
		"too deep":               {lines("a", "a/b/c") + end, false},
		"elsewhere":              {dirText + "\n" + entryText("/wa") + "\n" + end, false},
		"itself":                 {dirText + "\n" + dirText + "\n" + end, false},
		"above":                  {dirText + "\n" + entryText("/") + "\n" + end, false},
		"no end":                 {lines("a"), false},
		"end that says nothing":  {lines("a") + `{"more":null}` + "\n", false},
		"end of a wrong type":    {lines("a") + `{"more":"no"}` + "\n", false},
		"more after the end":     {lines("a") + end + entryText("/w/b") + "\n", false},
		"two ends":               {lines("a") + end + end, false},
		"half a line":            {lines("a") + end + `{`, false},
		"end without a newline":  {lines("a") + strings.TrimSuffix(end, "\n"), false},
		"no directory":           {entryText("/w") + "\n" + end, false},
		"only an end":            {end, false},
		"empty":                  {"", false},
		"empty line":             {lines("a") + "\n" + end, false},
		"endless line":           {lines("a") + strings.Repeat(" ", 2*MaxReplyBody) + end, false},
	} {
		entries, more, err := answer(200, c.text).List(t.Context(), List{Path: "/w", Depth: 2, Limit: 5})
		if (err == nil) != c.fine || err != nil && !errors.Is(err, ErrProtocol) || more != c.fine || err != nil && entries != nil {
			t.Errorf("%s: %v %v %v", name, entries, more, err)
		}
	}
	for after, fine := range map[string]bool{"a": false, "a/": false, "0": true, "a/b": false, "a.b": false} {
		_, _, err := answer(200, lines("a", "b")+end).List(t.Context(), List{Path: "/w", Depth: 2, Limit: 5, After: after})
		if (err == nil) != fine || err != nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("after %q: %v", after, err)
		}
	}
	root := entryText("/", `"file"`, `"directory"`) + "\n" + entryText("/a") + "\n" + end
	if entries, _, err := answer(200, root).List(t.Context(), List{Path: "/", Depth: 1, Limit: 5}); err != nil || len(entries) != 1 {
		t.Errorf("root: %v %v", entries, err)
	}
	// A list that breaks off is no lie.
	whole := lines("a", "b") + end
	for cut := range len(whole) {
		c := NewClient(textTransport(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(whole), whole[:cut])))
		if _, _, err := c.List(t.Context(), List{Path: "/w", Depth: 2, Limit: 5}); err == nil || errors.Is(err, ErrProtocol) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

// A list and a watch without an end are bounded in memory, and the list in
// length.
func TestEndlessLists(t *testing.T) {
	t.Parallel()
	i, read := 0, 0
	endlessly := func() []byte {
		i++
		text := entryText(fmt.Sprintf("/w/%09d%s", i, strings.Repeat("n", 5000))) + "\n"
		if i == 1 {
			text = dirText + "\n"
		}
		read += len(text)
		return []byte(text)
	}
	c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) { return 200, -1, &generator{next: endlessly} }))
	if _, _, err := c.List(t.Context(), List{Path: "/w", Depth: 1, Limit: MaxList}); !errors.Is(err, ErrProtocol) || read > MaxListBytes+4*MaxReplyBody {
		t.Errorf("%v after %d bytes", err, read)
	}
	for _, line := range []string{" ", "{", `{"type":"created","path":"`} {
		c := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) {
			return 200, -1, io.MultiReader(strings.NewReader(line), &endless{})
		}))
		if err := c.Watch(t.Context(), "/w", true, func(Change) error { return nil }); !errors.Is(err, ErrProtocol) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func changeText(kind, path, from string) string {
	text := fmt.Sprintf(`{"type":%q,"path":%q`, kind, b64(path))
	if from != "" {
		text += fmt.Sprintf(`,"from":%q`, b64(from))
	}
	return text + "}\n"
}

func TestWatchChecksItsReply(t *testing.T) {
	t.Parallel()
	ready := changeText("", "/w", "")
	for name, c := range map[string]struct {
		text  string
		calls int
		fine  bool
	}{
		"ready":              {ready, 1, true},
		"signs of life":      {ready + "\n\n", 3, true},
		"changes":            {ready + changeText("created", "/w/a", "") + changeText("modified", "/w/a\xff", "") + changeText("removed", "/w", ""), 4, true},
		"a move":             {ready + changeText("moved", "/w/a", "/w/b/c"), 2, true},
		"an overflow":        {ready + `{"type":"overflow"}` + "\n", 2, true},
		"not ready":          {changeText("created", "/w/a", ""), 0, false},
		"ready elsewhere":    {changeText("", "/x", ""), 0, false},
		"ready nowhere":      {changeText("", "", ""), 0, false},
		"a sign too early":   {"\n" + ready, 0, false},
		"nothing":            {"", 0, false},
		"unknown type":       {ready + changeText("stolen", "/w/a", ""), 1, false},
		"ready twice":        {ready + ready, 1, false},
		"elsewhere":          {ready + changeText("created", "/x", ""), 1, false},
		"a neighbour":        {ready + changeText("created", "/wa", ""), 1, false},
		"up":                 {ready + changeText("created", "/w/../x", ""), 1, false},
		"moved from nowhere": {ready + changeText("moved", "/w/a", ""), 1, false},
		"moved from outside": {ready + changeText("moved", "/w/a", "/x"), 1, false},
		"created from":       {ready + changeText("created", "/w/a", "/w/b"), 1, false},
		"overflow of a path": {ready + changeText("overflow", "/w/a", ""), 1, false},
		"no JSON":            {ready + "created\n", 1, false},
		"half a line":        {ready + `{"type":"overflow"}`, 1, false},
	} {
		calls := 0
		err := answer(200, c.text).Watch(t.Context(), "/w", true, func(Change) error {
			calls++
			return nil
		})
		if (err == nil) != c.fine || err != nil && !errors.Is(err, ErrProtocol) || calls != c.calls {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
	}
	broken := NewClient(agentFunc(func(*http.Request) (int, int64, io.Reader) {
		return 200, -1, io.MultiReader(strings.NewReader(ready+`{"type":"cre`), iotest.ErrReader(io.ErrUnexpectedEOF))
	}))
	if err := broken.Watch(t.Context(), "/w", true, func(Change) error { return nil }); err == nil || errors.Is(err, ErrProtocol) {
		t.Errorf("broken: %v", err)
	}
}

// Every byte of a path survives JSON, both ways.
func TestPathsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	every := make([]byte, 0, 255)
	for i := 1; i < 256; i++ {
		every = append(every, byte(i))
	}
	path := "/" + strings.ReplaceAll(string(every), "/", "")
	again := func(in, out any) {
		t.Helper()
		data, err := json.Marshal(in)
		if err != nil || bytes.ContainsRune(data, '\ufffd') || bytes.ContainsAny(data, "\n") {
			t.Fatalf("%s %v", data, err)
		}
		if err := json.Unmarshal(data, out); err != nil {
			t.Fatal(err)
		}
	}
	entry := Entry{Path: path, Type: TypeSymlink, Size: 1, Mode: "4755", UID: 2, GID: math.MaxUint32, ModifiedNS: math.MinInt64, Inode: math.MaxUint64, Target: path}
	var entry2 Entry
	again(entry, &entry2)
	move, change, dir, head := Move{path, path, true}, Change{ChangeMoved, path, path, true}, MakeDir{path, 0o755}, FileHead{path, 0o644, 1 << 40}
	var move2 Move
	var change2 Change
	var dir2 MakeDir
	again(move, &move2)
	again(change, &change2)
	again(dir, &dir2)
	text, err := AppendFileHead(nil, head)
	if err != nil {
		t.Fatal(err)
	}
	head2, err := ReadFileHead(bytes.NewReader(text))
	if entry != entry2 || move != move2 || change != change2 || dir != dir2 || head != head2 || err != nil {
		t.Errorf("%+v %+v %+v %+v %+v %v", entry2, move2, change2, dir2, head2, err)
	}
}

func TestComparePaths(t *testing.T) {
	t.Parallel()
	order := []string{"", "\x01", "\x01/x", "A", "a", "a/", "a/a", "a/a/z", "a/b", "a\x01", "a ", "a.", "a./b", "a0", "aa", "b", "\xff"}
	for i, one := range order {
		for j, other := range order {
			if got := ComparePaths(one, other); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%q and %q: %d", one, other, got)
			}
		}
	}
	// As by parts.
	paths := []string{"a.b", "a/b", "a/b.c/d", "a/b/c", "a", "a-b/c"}
	parts := slices.Clone(paths)
	slices.SortFunc(paths, ComparePaths)
	slices.SortFunc(parts, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	if !slices.Equal(paths, parts) {
		t.Errorf("%q, want %q", paths, parts)
	}
}

func FuzzComparePaths(f *testing.F) {
	f.Add("a/b", "a.b")
	f.Add("a", "a/")
	f.Add("", "x")
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.Contains(a+b, "\x00") {
			return
		}
		want := slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
		if a == "" || b == "" { // "" has one part too
			want = len(a) - len(b)
		}
		got := ComparePaths(a, b)
		if (got < 0) != (want < 0) || (got > 0) != (want > 0) {
			t.Fatalf("%q %q: %d, want %d", a, b, got, want)
		}
	})
}

func FuzzReadFileHead(f *testing.F) {
	whole, err := AppendFileHead(nil, FileHead{Path: "a/\xff", Mode: 0o644, Size: 7})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(whole, "content"...))
	f.Add(whole[:9])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 11, '{', '"', 's', 'i', 'z', 'e', '"', ':', '-', '1', '}'})
	f.Fuzz(func(t *testing.T, wire []byte) {
		in := bytes.NewReader(wire)
		head, err := ReadFileHead(in)
		switch {
		case err == nil && head.Size < 0:
			t.Fatalf("%+v", head)
		case err != nil && !errors.Is(err, ErrProtocol) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			t.Fatal(err)
		case errors.Is(err, io.EOF) && len(wire) > 0:
			t.Fatalf("an end after %d bytes", len(wire))
		}
	})
}

// Whatever a guest says of its files, a call ends with what keeps the bounds, or
// with an error of a known kind.
func FuzzFileReplies(f *testing.F) {
	f.Add(200, entryText("/w/a"))
	f.Add(200, dirText+"\n"+entryText("/w/a")+"\n"+`{"more":false}`+"\n")
	f.Add(200, `  {"entries":1}`)
	f.Add(200, changeText("", "/w", "")+changeText("created", "/w/x", "")+"\n")
	f.Add(409, `{"code":"exists","detail":"x"}`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		ctx := context.Background()
		c := answer(status, body)
		known := func(err error) {
			var refusal *Error
			if err != nil && !errors.Is(err, ErrProtocol) && !errors.As(err, &refusal) {
				t.Error(err)
			}
			if refusal != nil && len(refusal.Detail) > MaxDetail {
				t.Errorf("detail of %d bytes", len(refusal.Detail))
			}
		}
		entry, err := c.Stat(ctx, "/w/a")
		if known(err); err == nil && (entry.Path != "/w/a" || entry.Size < 0) {
			t.Errorf("%+v", entry)
		}
		entries, _, err := c.List(ctx, List{Path: "/w", Depth: 2, Limit: 3})
		known(err)
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Path, "/w/") || len(entries) > 3 {
				t.Errorf("%+v", entries)
			}
		}
		known(c.Watch(ctx, "/w", true, func(change Change) error {
			if change.Path != "" && change.Path != "/w" && !strings.HasPrefix(change.Path, "/w/") {
				t.Errorf("%+v", change)
			}
			return nil
		}))
		_, err = c.Remove(ctx, "/w/a", true)
		known(err)
		_, err = c.WriteFiles(ctx, []NewFile{{Path: "/w/a"}})
		known(err)
	})
}
