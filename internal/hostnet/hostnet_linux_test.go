package hostnet

import (
	"strings"
	"testing"
)

func TestNewRefuses(t *testing.T) {
	for _, conf := range []Config{
		{Dir: "relative", Instance: "a"}, {Dir: "/a/../b", Instance: "a"}, {}, {Instance: "a/b"}, {Instance: ".."}, {Instance: strings.Repeat("a", 33)},
	} {
		if _, err := New(conf); err == nil {
			t.Errorf("%+v was taken", conf)
		}
	}
	n, err := New(Config{Instance: "a-1"})
	if err != nil || n.path != "/run/microvm/netns/a-1-empty" {
		t.Errorf("%+v %v", n, err)
	}
}

func TestOnThreadNeverTakesTheFirst(t *testing.T) {
	for range 50 {
		if err := onThread(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
}
