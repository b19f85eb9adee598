package clusterbpf_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"testing"
)

// TestTypesOfOtherArchitectures compares the types that other architectures have with the generated ones.
func TestTypesOfOtherArchitectures(t *testing.T) {
	t.Parallel()
	generated, others := declaredTypes(t, "cluster_x86_bpfel.go"), declaredTypes(t, "types_other.go")
	if len(others) == 0 {
		t.Fatal("types_other.go has no types")
	}
	for name, text := range others {
		if text != generated[name] {
			t.Errorf("%s in types_other.go:\n%s\nas bpf2go makes it:\n%s", name, text, generated[name])
		}
	}
}

// declaredTypes returns the source of each type that a file declares.
func declaredTypes(t *testing.T, file string) map[string]string {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	types := make(map[string]string)
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			var text bytes.Buffer
			if err := printer.Fprint(&text, files, spec.Type); err != nil {
				t.Fatal(err)
			}
			types[spec.Name.Name] = text.String()
		}
		return true
	})
	return types
}
