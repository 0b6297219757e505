package ident

import (
	"sort"
	"testing"

	"pgregory.net/rapid"
)

func TestIDsAscend(t *testing.T) {
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = New(Sandbox)
	}
	if !sort.StringsAreSorted(ids) {
		t.Fatal("ids of one process do not ascend")
	}
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			t.Fatal("an id came twice")
		}
	}
}

func TestHostNameComesBack(t *testing.T) {
	id := New(Sandbox)
	back, ok := FromHost(Sandbox, Host(id))
	if !ok || back != id {
		t.Fatalf("%s -> %s -> %s %v", id, Host(id), back, ok)
	}
}

func TestForeignNamesAreNotOurs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		if id, ok := FromHost(Sandbox, name); ok && Host(id) != name {
			t.Fatalf("%q taken for %q", name, id)
		}
	})
	for _, name := range []string{"", "sb-", "sb-1", "sb-01HX", "exe-01hzzzzzzzzzzzzzzzzzzzzzzz", "../sb-01hzzzzzzzzzzzzzzzzzzzzzzz"} {
		if _, ok := FromHost(Sandbox, name); ok {
			t.Fatalf("%q taken for ours", name)
		}
	}
}
