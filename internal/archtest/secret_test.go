package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// secrets are the types that hold a caller's secret in the clear and hide it from
// fmt only where fmt may ask them.
var secrets = []string{"secret.Env", "sandbox.Spec", "execution.Spec"}

// TestSecretsAreInNoHiddenField: fmt asks no method of an unexported field and
// prints it as it is, so that one careless %+v of what is around it is enough.
func TestSecretsAreInNoHiddenField(t *testing.T) {
	looked := 0
	for _, p := range list(t, "") {
		for _, file := range p.GoFiles {
			path := filepath.Join(p.Dir, file)
			tree, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			looked++
			for _, field := range hiddenSecrets(tree) {
				t.Errorf("%s: field %s holds a secret and fmt would print it; export it, or keep no secret there", path, field)
			}
		}
	}
	if looked < 100 {
		t.Errorf("only %d files were looked at", looked)
	}
}

// hiddenSecrets names the unexported fields of a file that have a type of secrets.
func hiddenSecrets(tree *ast.File) (names []string) {
	ast.Inspect(tree, func(n ast.Node) bool {
		s, ok := n.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range s.Fields.List {
			if !isSecret(tree.Name.Name, field.Type) {
				continue
			}
			for _, name := range field.Names {
				if !name.IsExported() {
					names = append(names, name.Name)
				}
			}
		}
		return true
	})
	return names
}

// isSecret looks through pointers, slices and maps.
func isSecret(pkg string, of ast.Expr) bool {
	switch of := of.(type) {
	case *ast.StarExpr:
		return isSecret(pkg, of.X)
	case *ast.ArrayType:
		return isSecret(pkg, of.Elt)
	case *ast.MapType:
		return isSecret(pkg, of.Key) || isSecret(pkg, of.Value)
	case *ast.SelectorExpr:
		if from, ok := of.X.(*ast.Ident); ok {
			return slices.Contains(secrets, from.Name+"."+of.Sel.Name)
		}
	case *ast.Ident:
		return slices.Contains(secrets, pkg+"."+of.Name)
	}
	return false
}

func TestHiddenSecretsAreSeen(t *testing.T) {
	tree, err := parser.ParseFile(token.NewFileSet(), "x.go", `package sandbox
type a struct {
	Shown secret.Env
	one secret.Env
	two, three map[string]*Spec
	other string
	four struct{ five []execution.Spec }
}`, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(hiddenSecrets(tree), " "); got != "one two three five" {
		t.Errorf("saw %q", got)
	}
}
