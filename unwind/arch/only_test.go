package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// architectures are the names in Go, in Linux, and in the tables of this package.
var architectures = []string{
	"amd64", "arm64", "ppc64le", "s390x", "riscv64", "x86_64", "aarch64",
	"AMD64", "ARM64", "PPC64LE", "S390X", "RISCV64", "GOARCH",
	"EM_X86_64", "EM_AARCH64", "EM_PPC64", "EM_S390", "EM_RISCV",
}

// TestArchitecturesAreData checks that differences between architectures are data, and only in this package. Code
// outside must not compare or switch by architecture. Only package ptrace has files for one architecture, chosen by
// the compiler: they describe the kernel's register sets, which ptrace returns without using this package.
func TestArchitecturesAreData(t *testing.T) {
	const root = "../.."
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "internal" || d.Name() == "bench" ||
			path == filepath.Join(root, "unwind/arch") || strings.HasPrefix(d.Name(), ".git")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		if ofOne(path) && !strings.HasPrefix(path, root+"/ptrace/") {
			t.Errorf("%s is of one architecture", path)
		}
		for _, where := range comparisons(t, path) {
			t.Errorf("%s compares architectures", where)
		}
		return nil
	})
	if err != nil || files < 100 {
		t.Errorf("%d files, %v", files, err)
	}
}

// ofOne says whether the compiler takes the file for one architecture only.
func ofOne(path string) bool {
	name := strings.TrimSuffix(filepath.Base(path), ".go")
	return slices.Contains(architectures, name[strings.LastIndexByte(name, '_')+1:])
}

// comparisons returns where the file's code compares with, or switches by, the name of an architecture.
func comparisons(t *testing.T, path string) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	note := func(n ast.Node) {
		if n != nil && names(n) {
			found = append(found, set.Position(n.Pos()).String())
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				note(n)
			}
		case *ast.SwitchStmt:
			if n.Tag != nil {
				note(n.Tag)
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				note(e)
			}
		}
		return true
	})
	return found
}

// names says whether an expression has the name of an architecture in it.
func names(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			found = found || slices.Contains(architectures, n.Name)
		case *ast.BasicLit:
			found = found || n.Kind == token.STRING && slices.Contains(architectures, strings.Trim(n.Value, "\"`"))
		}
		return true
	})
	return found
}

// TestComparisons checks that the test detects comparisons in this package.
func TestComparisons(t *testing.T) {
	if found := comparisons(t, "arch.go"); len(found) != 6 {
		t.Errorf("arch.go compares at %q", found)
	}
}
