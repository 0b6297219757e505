package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/microvmd/microvm/"

// pkg is what go list says of one package.
type pkg struct {
	ImportPath string
	Doc        string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// rule limits what packages may import of this module. The reason is printed
// with every breach.
type rule struct {
	of     []string // packages, or trees with a trailing "/..."
	may    []string // what else of this module they may import
	reason string
}

var leaves = []string{"internal/fault", "internal/ident", "internal/guestwire", "internal/debian", "internal/secret"}

var rules = []rule{
	{leaves, leaves, "leaves import the standard library and leaves, so that everything can use them"},
	{[]string{"internal/image"}, leaves, "nouns form a ladder: image is its foot"},
	{[]string{"internal/sandbox"}, with(leaves, "internal/image"), "a noun declares what it needs of the host itself, and imports only nouns below it"},
	{[]string{"internal/execution"}, with(leaves, "internal/image", "internal/sandbox"), "a noun declares what it needs of the host itself, and imports only nouns below it"},
	{[]string{"internal/firecracker", "internal/cgroup", "internal/hostnet"}, with(leaves, "internal/image", "internal/sandbox"), "an adapter imports leaves and the nouns it serves, never another adapter and never the API"},
	{[]string{"internal/sqlstore", "internal/sqlstore/..."}, with(leaves, "internal/image", "internal/sandbox", "internal/execution"), "an adapter imports leaves and the nouns it serves, never another adapter and never the API"},
	{[]string{"internal/httpapi", "internal/httpapi/..."}, with(leaves, "internal/image", "internal/sandbox", "internal/execution", "internal/httpapi/gen", "api"), "httpapi knows nouns and its own generated types; nouns know no wire types"},
	{[]string{"internal/guest"}, []string{"internal/guestwire"}, "the agent runs beside hostile code and stays small"},
	{[]string{"cmd/guestd"}, []string{"internal/guest", "internal/guestwire"}, "the agent runs beside hostile code and stays small"},
	{[]string{"cmd/microvmd"}, []string{"internal/daemon"}, "the daemon's parts meet in internal/daemon"},
	{[]string{"cmd/microvm"}, []string{"sdk/go", "internal/artifact", "internal/machine", "internal/posture", "internal/fault", "internal/bench", "internal/debian", "images", "packaging"}, "the command line is a client: it knows the API's SDK and what prepares a host"},
	{[]string{"internal/artifact"}, []string{"images", "internal/debian"}, "artifact builds what images describes and knows no noun"},
	{[]string{"internal/machine"}, []string{"internal/artifact", "internal/debian", "packaging"}, "the emulated host runs the daemon and knows nothing of its inside"},
	{[]string{"internal/posture"}, []string{"internal/artifact"}, "posture reads a host and changes nothing"},
}

func with(list []string, more ...string) []string { return append(slices.Clone(list), more...) }

// thirdParty names the only outside modules that these packages may use.
var thirdParty = []struct {
	of, may []string
	reason  string
}{
	{[]string{"internal/guest", "cmd/guestd"}, []string{"golang.org/x/sys/", "github.com/creack/pty"}, "the agent runs beside hostile code and stays small"},
	{[]string{"internal/fault", "internal/guestwire", "internal/secret"}, nil, "leaves import the standard library and leaves"},
}

func TestImportRules(t *testing.T) {
	for _, tag := range []string{"", fakeTag} {
		checkImports(t, tag)
	}
}

func checkImports(t *testing.T, tag string) {
	t.Helper()
	for _, p := range list(t, tag) {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, r := range rules {
			if !matches(r.of, name) {
				continue
			}
			for _, imported := range p.Imports {
				ours, isOurs := strings.CutPrefix(imported, module)
				if isOurs && !slices.Contains(r.may, ours) && !matches(r.of, ours) {
					t.Errorf("%s imports %s: %s", name, ours, r.reason)
				}
			}
		}
		for _, r := range thirdParty {
			if !matches(r.of, name) {
				continue
			}
			for _, imported := range p.Imports {
				outside := strings.Contains(strings.SplitN(imported, "/", 2)[0], ".") && !strings.HasPrefix(imported, module)
				allowed := slices.ContainsFunc(r.may, func(m string) bool { return strings.HasPrefix(imported, m) })
				if outside && !allowed {
					t.Errorf("%s imports %s: %s", name, imported, r.reason)
				}
			}
		}
		for _, imported := range p.Imports {
			ours := strings.TrimPrefix(imported, module)
			testBuild := name == "internal/daemon" && tag == fakeTag
			if strings.HasPrefix(ours, "internal/testkit") && !strings.HasPrefix(name, "internal/testkit") && !strings.HasPrefix(name, "e2e") && !testBuild {
				t.Errorf("%s imports %s: only tests, and the daemon's build for them, import testkit", name, ours)
			}
			if ours == "internal/daemon" && name != "cmd/microvmd" {
				t.Errorf("%s imports internal/daemon: only cmd/microvmd builds the whole", name)
			}
		}
	}
}

// TestRulesBite proves that a breach would be seen.
func TestRulesBite(t *testing.T) {
	if !matches([]string{"internal/httpapi/..."}, "internal/httpapi/gen") || matches([]string{"internal/httpapi/..."}, "internal/httpapix") {
		t.Fatal("a tree does not match its own packages only")
	}
	for _, r := range rules {
		found := false
		for _, p := range list(t, "") {
			found = found || matches(r.of, strings.TrimPrefix(p.ImportPath, module))
		}
		if !found {
			t.Errorf("no package matches %v: the rule guards nothing", r.of)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range list(t, "") {
		if len(p.GoFiles) == 0 || strings.HasSuffix(p.ImportPath, "/gen") {
			continue
		}
		if len(strings.Fields(p.Doc)) < 4 {
			t.Errorf("%s has no package comment that says what it owns", p.ImportPath)
		}
	}
}

func matches(patterns []string, name string) bool {
	for _, pattern := range patterns {
		if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
			if strings.HasPrefix(name, tree+"/") {
				return true
			}
		} else if pattern == name {
			return true
		}
	}
	return false
}

// fakeTag builds the daemon with the fake host of testkit.
const fakeTag = "fakevmm"

func list(t *testing.T, tag string) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-tags", tag, "-json=ImportPath,Doc,Dir,GoFiles,Imports", "./...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []pkg
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}
