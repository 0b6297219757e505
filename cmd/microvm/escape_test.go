package main

import "testing"

func TestEscapes(t *testing.T) {
	for _, test := range []struct {
		keys, pass  string
		help, leave bool
	}{
		{"hello\r", "hello\r", false, false},
		{"~.", "", false, true},
		{"ls\r~.", "ls\r", false, true},
		{"ls\n~.more", "ls\n", false, true},
		{"ls ~.", "ls ~.", false, false},
		{"~~.", "~.", false, false},
		{"~/bin\r", "~/bin\r", false, false},
		{"~\r~.", "~\r", false, true},
		{"~?", "", true, false},
		{"~?~.", "", true, true},
		{"a\r~?b", "a\rb", true, false},
		{"\x03~.", "\x03~.", false, false}, // Ctrl-C ends no line, as with ssh
		{"~", "", false, false},            // until the next key
	} {
		// In whatever pieces the keys come.
		for size := 1; size <= len(test.keys); size++ {
			var e escapes
			var pass string
			var help, leave bool
			for at := 0; at < len(test.keys) && !leave; at += size {
				p, h, l := e.feed([]byte(test.keys[at:min(at+size, len(test.keys))]))
				pass, help, leave = pass+string(p), help || h, l
			}
			if pass != test.pass || help != test.help || leave != test.leave {
				t.Errorf("%q in pieces of %d: passed %q, help %v, leave %v", test.keys, size, pass, help, leave)
			}
		}
	}
}
