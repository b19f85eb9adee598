package ptrace

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// nosplitPackages have the functions that run in the midst of a system call.
var nosplitPackages = []string{
	".", "./thread", "./process", "./snapshot",
}

// TestStopAndCopyIsNosplit checks all functions that stopAndCopyNoSched and collect call, on each architecture. They
// must be nosplit, exempt from the race detector, and store no pointers. They may call only system calls that bypass
// the scheduler. Without this test, a violation would show only as a crash in the middle of a capture.
func TestStopAndCopyIsNosplit(t *testing.T) {
	w := &window{
		T: t, fset: token.NewFileSet(), functions: map[string][]*ast.FuncDecl{}, seen: map[string]bool{},
		barriers: writeBarriers(t),
	}
	var names []string
	for _, pkg := range nosplitPackages {
		files, err := filepath.Glob(filepath.Join(pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(pkg, files, err)
		}
		names = append(names, files...)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(w.fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				w.functions[f.Name.Name] = append(w.functions[f.Name.Name], f)
			}
		}
	}
	w.look("stopAndCopyNoSched")
	w.look("drainNoSched")
	if len(w.seen) < 30 || !w.seen["detach"] || !w.seen["fetchBlocks"] || !w.seen["StackPointer"] {
		t.Errorf("only %v were looked through", w.seen)
	}
}

// window is the state of TestStopAndCopyIsNosplit.
type window struct {
	*testing.T

	fset      *token.FileSet
	functions map[string][]*ast.FuncDecl // by name: of each architecture one, or of different types
	seen      map[string]bool
	barriers  map[string][]int
}

// look checks a function and the functions that it calls.
func (w *window) look(name string) {
	allowed := []string{"uintptr", "int", "int64", "int32", "uint64", "uint32", "uint", "byte", "min", "max", "len",
		"a pointer type", "unsafe.Pointer", "unsafe.Sizeof", "unsafe.Add", "unix.RawSyscall", "unix.RawSyscall6",
		"EnterSyscall", "ExitSyscall",
		"LoadUint32"} // of package atomic, of which the compiler makes an instruction
	if w.seen[name] || slices.Contains(allowed, name) {
		return
	}
	w.seen[name] = true
	if len(w.functions[name]) == 0 {
		w.Errorf("%s is called, and is in none of these packages", name)
	}
	for _, f := range w.functions[name] {
		begin, end := w.fset.Position(f.Pos()), w.fset.Position(f.End())
		if !marked(f, "//go:nosplit") || !marked(f, "//go:norace") {
			w.Errorf("%s: %s is not nosplit, or not kept from the race detector", begin, name)
		}
		for _, line := range w.barriers[begin.Filename] {
			if line >= begin.Line && line <= end.Line {
				w.Errorf("%s:%d: %s stores a pointer", begin.Filename, line, name)
			}
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				w.look(called(n.Fun))
			case *ast.FuncLit, *ast.GoStmt, *ast.DeferStmt, *ast.SendStmt, *ast.SelectStmt, *ast.TypeSwitchStmt:
				w.Errorf("%s: %T", w.fset.Position(n.Pos()), n)
			}
			return true
		})
	}
}

// marked reports whether a function has a directive.
func marked(f *ast.FuncDecl, directive string) bool {
	return f.Doc != nil && slices.ContainsFunc(f.Doc.List, func(c *ast.Comment) bool { return c.Text == directive })
}

// called returns the name of a called function: for a method without its type, for a function of another package with
// the package.
func called(fun ast.Expr) string {
	switch f := fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok && (x.Name == "unix" || x.Name == "unsafe" || x.Name == "binary") {
			return x.Name + "." + f.Sel.Name
		}
		return f.Sel.Name
	case *ast.StarExpr:
		return "a pointer type"
	case *ast.ParenExpr:
		return called(f.X)
	}
	return "a function value"
}

// writeBarriers returns the lines of each file at which the compiler emits a write barrier for a pointer.
func writeBarriers(t *testing.T) map[string][]int {
	t.Helper()
	out, err := exec.Command("go", append([]string{"build", "-gcflags=-d=wb"}, nosplitPackages...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := map[string][]int{}
	for line := range strings.Lines(string(out)) {
		parts := strings.Split(line, ":")
		if len(parts) != 4 || !strings.Contains(parts[3], "write barrier") {
			continue
		}
		if n, err := strconv.Atoi(parts[1]); err == nil {
			name := filepath.Clean(parts[0])
			lines[name] = append(lines[name], n)
		}
	}
	if len(lines) == 0 {
		t.Fatalf("the compiler reports no write barriers:\n%s", out)
	}
	return lines
}
