package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheDaemonIsFoundInOrder(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "d.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	machines := filepath.Join(dir, "machines")
	for _, name := range []string{"default", "second"} {
		if err := os.MkdirAll(filepath.Join(machines, name), 0o700); err != nil {
			t.Fatal(err)
		}
		text := `{"url":"http://` + name + `","api_key":"mvk_` + name + `"}`
		if err := os.WriteFile(filepath.Join(machines, name, "endpoint.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := filepath.Join(dir, "none.sock")
	everything := map[string]string{"MICROVM_URL": "http://env", "MICROVM_API_KEY": "mvk_env", "MICROVM_SOCKET": socket, "MICROVM_MACHINE_DIR": machines}
	without := func(names ...string) map[string]string {
		env := map[string]string{}
		for key, value := range everything {
			if !strings.Contains(strings.Join(names, " "), key) {
				env[key] = value
			}
		}
		return env
	}
	for _, test := range []struct {
		name    string
		globals globals
		env     map[string]string
		want    endpoint
		fails   string
	}{
		{"flags", globals{url: "http://flag", key: "mvk_flag"}, everything, endpoint{url: "http://flag", key: "mvk_flag"}, ""},
		{"--url with the environment's key", globals{url: "http://flag"}, everything, endpoint{url: "http://flag", key: "mvk_env"}, ""},
		{"--url of a socket", globals{url: "unix:///x.sock"}, without("MICROVM_API_KEY"), endpoint{socket: "/x.sock"}, ""},
		{"--machine", globals{machine: "second"}, everything, endpoint{url: "http://second", key: "mvk_second"}, ""},
		{"--machine with a key", globals{machine: "second", key: "mvk_flag"}, everything, endpoint{url: "http://second", key: "mvk_flag"}, ""},
		{"--machine that is not there", globals{machine: "third"}, everything, endpoint{}, `no emulated host "third"`},
		{"environment", globals{}, everything, endpoint{url: "http://env", key: "mvk_env"}, ""},
		{"named socket", globals{socket: none}, without("MICROVM_URL"), endpoint{socket: socket}, ""},
		{"default socket", globals{socket: socket}, without("MICROVM_URL", "MICROVM_SOCKET"), endpoint{socket: socket}, ""},
		{"default machine", globals{socket: none}, without("MICROVM_URL", "MICROVM_SOCKET"), endpoint{url: "http://default", key: "mvk_default"}, ""},
		{"nothing", globals{socket: none}, map[string]string{"MICROVM_MACHINE_DIR": none}, endpoint{}, "no daemon found: "},
		{"a named socket is binding", globals{socket: socket}, map[string]string{"MICROVM_SOCKET": none, "MICROVM_MACHINE_DIR": machines}, endpoint{}, "MICROVM_SOCKET"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.globals.find(func(name string) string { return test.env[name] })
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Fatalf("error %v", err)
				}
				if _, fix := explain(err); fix == "" {
					t.Fatalf("%v says no next step", err)
				}
				return
			}
			if err != nil || got != test.want {
				t.Fatalf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}
