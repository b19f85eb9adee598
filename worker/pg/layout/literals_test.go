package layout_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// readers are the packages that read the structures of a server. Their offsets come from package layout.
//
//nolint:gochecknoglobals // a table
var readers = []string{
	"worker/pg/levels", "worker/pg/locks", "worker/pg/memctx", "worker/pg/plan", "worker/pg/state",
	"worker/measure/clusterprofile", "worker/measure/waitevent",
}

// The reasons of otherNumbers.
const (
	toMove      = "an offset alike in all versions that have it, which package layout does not have yet"
	size        = "the size of a value"
	instruction = "the length of an instruction"
	count       = "a number of processes"
	address     = "a socket's address"
)

// otherNumbers are the numbers that the test knows, with their reason. No number with the reason toMove may be added.
//
//nolint:gochecknoglobals // a table
var otherNumbers = map[string]string{
	"worker/measure/clusterprofile/clusterprofile.go 64": count,
	"worker/measure/waitevent/stacks.go 16":              size,
	"worker/pg/state/barrier.go 8":                       size,
	"worker/pg/levels/callbacks.go fnExtra":              toMove,
	"worker/pg/levels/callbacks.go functionName":         toMove,
	"worker/pg/levels/callbacks.go modeOffset":           toMove,
	"worker/pg/levels/callbacks.go statementIndex":       toMove,
	"worker/pg/levels/identify.go lea":                   instruction,
	"worker/pg/levels/languages.go isProcedure":          toMove,
	"worker/pg/levels/languages.go procedureName":        toMove,
	"worker/pg/levels/levels.go 16":                      toMove,
	"worker/pg/levels/levels.go 8":                       toMove,
	"worker/pg/levels/lock.go className":                 toMove,
	"worker/pg/levels/lock.go lockRelation":              toMove,
	"worker/pg/levels/lock.go lockTuple":                 toMove,
	"worker/pg/levels/lock.go relationClass":             toMove,
	"worker/pg/levels/lock.go relationID":                toMove,
	"worker/pg/levels/plpgsql.go 4":                      toMove,
	"worker/pg/levels/plpgsql.go 8":                      size,
	"worker/pg/levels/plpgsql.go lineno":                 toMove,
	"worker/pg/levels/sampled.go word":                   size,
	"worker/pg/levels/text.go 8":                         toMove,
	"worker/pg/levels/text.go load":                      instruction,
	"worker/pg/locks/shmem.go 8":                         size,
	"worker/pg/memctx/figures.go pointer":                size,
	"worker/pg/plan/figures.go kilobyte":                 size,
	"worker/pg/plan/figures.go wordSize":                 toMove,
	"worker/pg/plan/memory.go 4":                         toMove,
	"worker/pg/plan/memory.go wordSize":                  toMove,
	"worker/pg/plan/a64.go a64Length":                    instruction,
	"worker/pg/plan/running.go 16":                       instruction,
	"worker/pg/plan/speculated.go most":                  instruction,
	"worker/pg/plan/speculated.go unused":                instruction,
	"worker/pg/plan/speculated.go low":                   instruction,
	"worker/pg/plan/speculated.go a64Length":             instruction,
	"worker/pg/state/state.go moreSlots":                 count,
	"worker/pg/state/state.go nameDataLen":               size,
	"worker/pg/state/state.go v4":                        address,
	"worker/pg/state/state.go v6":                        address,
}

// TestReadersHaveNoOffsets finds numbers from 4 on that are added to something, or index bytes, in the packages that
// read a server's memory: directly, or by a constant of the package.
func TestReadersHaveNoOffsets(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, dir := range readers {
		for _, found := range offsetsIn(t, dir) {
			seen[found.what] = true
			if otherNumbers[found.what] == "" {
				t.Errorf("%s: %s looks like an offset: take it from package layout, or give the reason here",
					found.at, found.what)
			}
		}
	}
	for what := range otherNumbers {
		if !seen[what] {
			t.Errorf("%s is in the list, and not in the code", what)
		}
	}
}

// TestOffsetsAreFound verifies the search with an example.
func TestOffsetsAreFound(t *testing.T) {
	t.Parallel()
	const source = `package x
const procPID = 64
const most = 1 << 20
func f(b []byte, at uint64) {
	_, _, _, _, _ = b[24:], at+16, at+procPID, word(procPID), b[at:at+most]
	_ = at + 2
}`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "x.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := search(set, "x", []*ast.File{file})
	if len(found) != 3 {
		t.Errorf("%v", found)
	}
}

// finding is a number that may be an offset.
type finding struct{ at, what string }

func offsetsIn(t *testing.T, dir string) []finding {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("../../..", dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(names), err)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return search(set, dir, files)
}

// search finds the numbers in the files of a package.
func search(set *token.FileSet, dir string, files []*ast.File) (found []finding) {
	constants := make(map[string]bool)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.ValueSpec); ok {
				for i, name := range s.Names {
					if i < len(s.Values) && number(s.Values[i]) {
						constants[name.Name] = true
					}
				}
			}
			return true
		})
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			for _, e := range places(n) {
				what := ""
				if name, ok := e.(*ast.Ident); ok && constants[name.Name] {
					what = name.Name
				} else if l, ok := e.(*ast.BasicLit); ok && number(l) {
					what = l.Value
				}
				if what != "" {
					p := set.Position(e.Pos())
					found = append(found, finding{
						at:   fmt.Sprintf("%s:%d", p.Filename, p.Line),
						what: dir + "/" + filepath.Base(p.Filename) + " " + what,
					})
				}
			}
			return true
		})
	}
	return found
}

// places returns the expressions of a node in which an offset would be.
func places(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if n.Op == token.ADD {
			return []ast.Expr{n.X, n.Y}
		}
	case *ast.SliceExpr:
		if n.Low != nil {
			return []ast.Expr{n.Low}
		}
	}
	return nil
}

// number reports whether an expression is a decimal number from 4 on.
func number(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.INT {
		return false
	}
	n, err := strconv.Atoi(l.Value)
	return err == nil && n >= 4
}
