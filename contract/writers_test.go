package contract

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestBatchIsAllOrNothing: of a batch that is refused, by the daemon or by the
// guest, nothing is there.
func TestBatchIsAllOrNothing(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	f.write(t, "file", "as it was")
	if _, err := f.MakeDir(ctx, f.sandbox, "dir/sub"); err != nil {
		t.Fatal(err)
	}
	before := f.names(t, ".")
	good := func(path string) microvm.FileWrite { return microvm.FileWrite{Path: path, Content: []byte(path)} }
	for param, batch := range map[string][]microvm.FileWrite{
		"files[1].path": {good("new/a"), good("./new//a")},
		"files[2].path": {good("new/a"), good("file"), good("new/a/b")},
		"files[3].path": {good("new/a"), good("file"), good("new/b"), good("dir")},      // a directory is there
		"files[0].path": {good("file/below"), good("new/a")},                            // and here a file
		"files[1].mode": {good("new/a"), {Path: "new/b", Mode: ptr("4755")}, good("x")}, // of the specification
	} {
		_, err := f.WriteBatch(ctx, f.sandbox, batch)
		var refused *microvm.Error
		if !errors.As(err, &refused) || refused.Code != microvm.ErrorCodeParameterInvalid || refused.Param != param {
			t.Errorf("%s: %v", param, err)
		}
		if after := f.names(t, "."); !slices.Equal(after, before) {
			t.Errorf("%s: %q is there, was %q", param, after, before)
		}
		f.holds(t, "file", "as it was")
	}
	body := `{"files":[{"path":"new/a","content":"YQ=="},{"path":"new/b","content":"YQ"}]}`
	checkRefusal(t, request(t, f.d, f.d.key, "POST", "/v1/sandboxes/"+f.sandbox+"/files/batch", body), 400, "invalid_request_error", "parameter_invalid", "files[1].content")
	if after := f.names(t, "."); !slices.Equal(after, before) {
		t.Errorf("bad base64: %q is there, was %q", after, before)
	}

	batch := make([]microvm.FileWrite, 100)
	for i := range batch {
		batch[i] = good(fmt.Sprintf("many/%d/%d", i%7, i))
	}
	batch[50] = microvm.FileWrite{Path: "file", Content: []byte("replaced"), Mode: ptr("0600")}
	written, err := f.WriteBatch(ctx, f.sandbox, batch)
	if err != nil || len(written) != 100 || written[50].Mode != "0600" || written[99].Path != "/workspace/many/1/99" {
		t.Fatalf("%d %v", len(written), err)
	}
	f.holds(t, "file", "replaced")
	f.holds(t, "many/1/99", "many/1/99")
}

// TestTwoWriters of one file: each writes it whole, and each append is there whole
// and once, or refused.
func TestTwoWriters(t *testing.T) {
	f := startFiles(t)
	var group sync.WaitGroup
	for _, letter := range []string{"a", "b"} {
		content := strings.Repeat(letter, 300_000)
		group.Go(func() {
			for range 5 {
				if _, err := f.Upload(t.Context(), f.sandbox, "whole", strings.NewReader(content)); err != nil {
					t.Error(err)
				}
				got, err := f.Read(t.Context(), f.sandbox, "whole")
				if err != nil || len(got) != 300_000 || strings.Trim(string(got), string(got[:1])) != "" {
					t.Errorf("%d bytes of two writers (%v)", len(got), err)
				}
			}
		})
	}
	group.Wait()

	var mu sync.Mutex
	added := map[string]int{}
	for _, letter := range []string{"c", "d"} {
		piece := strings.Repeat(letter, 1000)
		group.Go(func() {
			for n := 0; n < 10; {
				at := int64(0)
				if file, err := f.Stat(t.Context(), f.sandbox, "log"); err == nil {
					at = file.Size
				} else if !microvm.HasCode(err, microvm.ErrorCodeFileNotFound) {
					t.Error(err)
					return
				}
				_, err := f.Append(t.Context(), f.sandbox, "log", at, strings.NewReader(piece))
				if microvm.HasCode(err, microvm.ErrorCodeFileConflict) {
					continue // the other one was first
				}
				if err != nil {
					t.Error(err)
					return
				}
				n++
			}
			mu.Lock()
			defer mu.Unlock()
			added[letter] = 10
		})
	}
	group.Wait()
	got, err := f.Read(t.Context(), f.sandbox, "log")
	if err != nil || len(got) != 1000*(added["c"]+added["d"]) {
		t.Fatalf("%d bytes, added %v (%v)", len(got), added, err)
	}
	for len(got) > 0 {
		if strings.Trim(string(got[:1000]), string(got[:1])) != "" {
			t.Fatal("two appends are mixed")
		}
		got = got[1000:]
	}
}
