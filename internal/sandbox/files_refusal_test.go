package sandbox_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// TestRefusalsOfTheGuest: every code of every call is a fault that a caller can
// act on, and none shows what the guest says.
func TestRefusalsOfTheGuest(t *testing.T) {
	const secret = "secret \x1b[31m\xff words"
	want := map[string]string{ // "call code" or "code": fault and parameter
		"file_not_found": "file_not_found ", "not_a_file": "parameter_invalid path", "bad_directory": "parameter_invalid path", "permission_denied": "parameter_invalid path",
		"bad_request": "parameter_invalid path", "disk_full": "guest_disk_full ", "too_deep": "parameter_invalid path", "too_much": "node_at_capacity ",
		"exists": "resource_already_exists path", "failed": "guest_unreachable ", "not_configured": "guest_unreachable ",
		"read range_invalid": "range_invalid Range", "append conflict": "file_conflict append_at",
		"batch file_not_found": "parameter_invalid files", "batch not_a_file": "parameter_invalid files", "batch permission_denied": "parameter_invalid files",
		"batch bad_request": "parameter_invalid files", "batch exists": "parameter_invalid files",
		"make directory not_a_file": "resource_already_exists path",
		"move file_not_found":       "file_not_found from", "move not_a_file": "parameter_invalid to", "move permission_denied": "parameter_invalid from",
		"move bad_request": "parameter_invalid to", "move exists": "resource_already_exists to", "move not_empty": "file_conflict to", "move other_disk": "file_conflict to",
		"remove not_empty": "file_conflict path", "write archive bad_request": "body_invalid ", "write archive unsafe_member": "parameter_invalid ",
		"write archive conflict": "file_conflict path",
		"watch too_much":         "node_at_capacity path",
	}
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{}
		files, _, id := withFiles(t, agent.factory())
		for call, do := range fileCalls {
			for _, code := range []guestwire.Code{
				guestwire.FileNotFound, guestwire.NotAFile, guestwire.PermissionDenied, guestwire.BadRequest, guestwire.DiskFull, guestwire.Conflict,
				guestwire.Exists, guestwire.NotEmpty, guestwire.OtherDisk, guestwire.UnsafeMember, guestwire.RangeInvalid, guestwire.TooDeep, guestwire.TooMuch,
				guestwire.Failed, guestwire.NotConfigured, guestwire.BadDirectory,
			} {
				agent.answer = refuse(code, secret)
				err := do(t.Context(), files, id, "x")
				var got *fault.Error
				if !errors.As(err, &got) {
					t.Fatalf("%s, %s: %v", call, code, err)
				}
				expected, ok := want[strings.TrimSuffix(call, " to")+" "+string(code)]
				if !ok {
					expected, ok = want[string(code)]
				}
				if !ok {
					expected = "guest_unreachable "
				}
				if is := string(got.Code) + " " + got.Param; is != expected {
					t.Errorf("%s, %s: %s, want %s", call, code, is, expected)
				}
				if strings.Contains(got.Message, "\x1b") || !utf8.ValidString(got.Message) || call != "write archive" && strings.Contains(got.Message, "secret") {
					t.Errorf("%s, %s shows what the guest says: %q", call, code, got.Message)
				}
				if got.Message == "" || !strings.ContainsAny(got.Message, ";,") {
					t.Errorf("%s, %s does not say what to do: %q", call, code, got.Message)
				}
			}
		}
	})
}

// TestUnsafeMemberIsNamed, escaped and bounded.
func TestUnsafeMemberIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{answer: refuse(guestwire.UnsafeMember, "../\u202e\n"+strings.Repeat("x", 1000))}
		files, _, id := withFiles(t, agent.factory())
		_, err := files.WriteArchive(t.Context(), id, "d", false, false, strings.NewReader("tar"))
		var got *fault.Error
		if !errors.As(err, &got) || !strings.Contains(got.Message, `"../\u202e\nxx`) || len(got.Message) > 600 {
			t.Errorf("%v", err)
		}
	})
}

// TestBatchNamesWhatTheGuestRefuses, as far as it is one of the batch.
func TestBatchNamesWhatTheGuestRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{}
		files, _, id := withFiles(t, agent.factory())
		for detail, param := range map[string]string{
			"b/c": "files[1].path", "/workspace/b/c": "files[1].path", "/tmp/a": "files[2].path", "/workspace": "files", "": "files",
		} {
			agent.answer = refuse(guestwire.NotAFile, detail)
			_, err := files.WriteBatch(t.Context(), id, []guestwire.NewFile{{Path: "a"}, {Path: "b/c"}, {Path: "/tmp/../tmp/a"}})
			var got *fault.Error
			if !errors.As(err, &got) || got.Param != param {
				t.Errorf("%q: %v", detail, err)
			}
		}
	})
}

// TestBatchIsCheckedAsAWhole, before the guest hears of it.
func TestBatchIsCheckedAsAWhole(t *testing.T) {
	many := make([]guestwire.NewFile, 101)
	for i := range many {
		many[i].Path = fmt.Sprint(i)
	}
	of := func(paths ...string) []guestwire.NewFile {
		files := make([]guestwire.NewFile, 0, len(paths))
		for _, path := range paths {
			files = append(files, guestwire.NewFile{Path: path})
		}
		return files
	}
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{answer: refuse(guestwire.DiskFull, "")}
		files, _, id := withFiles(t, agent.factory())
		for name, test := range map[string]struct {
			batch []guestwire.NewFile
			param string // "": it reaches the guest
		}{
			"none":                     {nil, "files"},
			"101":                      {many, "files"},
			"100":                      {many[:100], ""},
			"empty path":               {of("a", ""), "files[1].path"},
			"NUL":                      {of("a", "b", "c\x00"), "files[2].path"},
			"long":                     {of(long), "files[0].path"},
			"mode":                     {append(of("a"), guestwire.NewFile{Path: "b", Mode: 0o4755}), "files[1].mode"},
			"a directory":              {of("a", "b/"), "files[1].path"},
			"the root":                 {of("a", "/../.."), "files[1].path"},
			"twice":                    {of("a", "b", "a"), "files[2].path"},
			"twice, otherwise":         {of("./a/../b", "x", "b"), "files[2].path"},
			"twice, absolute":          {of("/workspace/a", "a"), "files[1].path"},
			"twice, from outside":      {of("../workspace/a", "/workspace//a"), "files[1].path"},
			"below another":            {of("a", "a/b"), "files[1].path"},
			"far below another":        {of("a/b/c/d", "x", "a"), "files[0].path"},
			"below, others in between": {of("a", "a!", "a-b", "a.c", "a/b"), "files[4].path"},
			"the working directory":    {of(".", "x"), "files[1].path"},
			"only like another":        {of("a", "ab", "a b", "a.b/c", "b/a"), ""},
			"bytes":                    {of("\xff", "\xfe"), ""},
		} {
			before := agent.calls.Load()
			_, err := files.WriteBatch(t.Context(), id, test.batch)
			var got *fault.Error
			if !errors.As(err, &got) || got.Param != test.param {
				t.Errorf("%s: %v", name, err)
			}
			if asked := agent.calls.Load() > before; asked != (test.param == "") {
				t.Errorf("%s: the guest was asked: %t", name, asked)
			}
		}
	})
}

// TestAGuestThatLies ends with its sandbox.
func TestAGuestThatLies(t *testing.T) {
	for call, do := range fileCalls {
		if call == "read archive" {
			continue // whatever comes is its content
		}
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &fileAgent{answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("no JSON\n")) }}
				files, m, id := withFiles(t, agent.factory())
				if err := do(t.Context(), files, id, "x"); !fault.Is(err, fault.GuestUnreachable) {
					t.Errorf("%v", err)
				}
				synctest.Wait()
				if sb, err := m.Get(t.Context(), id); err != nil || sb.Reason != "agent_unreachable" && sb.Reason != "agent_died" {
					t.Errorf("%+v %v", sb, err)
				}
			})
		})
	}
}
