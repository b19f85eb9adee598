package process_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Reasons for which a function reads memory, or decides about a process, without Memory, Each or ID.
const (
	inGuard  = "runs in WithTimeout or Each for this process, or in a goroutine that its caller leaves behind"
	inLazy   = "runs in symbolize.Lazy or with the deadline of the files, whose callers leave the goroutine behind"
	observes = "runs in an observation, whose caller leaves the goroutine behind"
	stops    = "between the stop of a thread and its release, with a timeout of its own"
	thread   = "the state of one thread, and not the end of a process"
	theKind  = "the kernel's answer about another object than a process"
)

// unguarded has the functions that may do so: the file, the function, and the name that it uses.
var unguarded = map[string]string{
	"ptrace/attach.go attachThread ESRCH":                                 stops,
	"ptrace/blocks.go copyBlocks unix.SYS_PROCESS_VM_READV":               stops,
	"ptrace/attach.go seize ESRCH":                                        stops,
	"ptrace/measure/probe/load.go Attach ESRCH":                           theKind,
	"ptrace/capturecall.go finishAfter ESRCH":                             thread,
	"ptrace/extrareads.go fetchBlocks unix.SYS_PROCESS_VM_READV":          stops,
	"ptrace/observe/blocked.go copyAround process.ReadMemory":             observes,
	"ptrace/observe/follow.go take process.ReadMemory":                    observes,
	"ptrace/observe/marks.go mark process.ReadMemory":                     observes,
	"ptrace/observe/prefault.go Prefault process.ReadMemory":              inGuard,
	"ptrace/observe/running.go sampleError ESRCH":                         thread,
	"ptrace/session.go thread ESRCH":                                      thread,
	"ptrace/stop.go read unix.SYS_PROCESS_VM_READV":                       stops,
	"ptrace/variables.go readBehindVariables unix.SYS_PROCESS_VM_READV":   stops,
	"worker/capture/contexts.go memoryContexts process.ReadMemory":        inGuard,
	"worker/capture/contexts.go memoryServer process.ReadMemory":          inGuard,
	"worker/capture/walker.go describe State":                             thread,
	"worker/measure/clusterprofile/server.go describe process.ReadMemory": inGuard,
	"worker/measure/clusterprofile/server.go readWord process.ReadMemory": inGuard,
	"worker/doctor/confinement.go deniedCalls unix.SYS_PROCESS_VM_READV":  theKind,
	"worker/naming/later.go Of symbolize.ProcessMemory":                   inGuard,
	"ptrace/measure/waits/preempt.go readPreemptFacts arguments":          theKind,
	"worker/pg/cluster/member.go ReadTitle arguments":                     inGuard,
	"worker/pg/cluster/upgrade.go inBinaryUpgrade arguments":              inGuard,
	"worker/pg/locks/memory.go readPieces unix.ProcessVMReadv":            inGuard,
	"worker/naming/symbolize/images.go findLive ProcessMemory":            inLazy,
	"worker/naming/symbolize/memory.go ProcessMemory process.ReadMemory":  inLazy,
	"worker/naming/symbolize/moved.go loadedAt ProcessMemory":             inLazy,
	"worker/naming/symbolize/moved.go moved ProcessMemory":                inLazy,
}

// TestReadsAreGuarded finds reads of foreign memory that have no timeout, and functions that decide themselves whether a
// process has ended.
func TestReadsAreGuarded(t *testing.T) {
	used := map[string]bool{}
	sources(t, func(name string, files *token.FileSet, file *ast.File) {
		for _, decl := range file.Decls {
			function := "-"
			if f, ok := decl.(*ast.FuncDecl); ok {
				function = f.Name.Name
			}
			for place, what := range findReads(decl) {
				key := name + " " + function + " " + what
				used[key] = true
				if unguarded[key] == "" {
					t.Errorf("%s: %s: use process.Memory, process.Each or process.ID, or give the reason here (%q)",
						files.Position(place), what, key)
				}
			}
		}
	})
	for key := range unguarded {
		if !used[key] {
			t.Errorf("%s: this exception has no call", key)
		}
	}
}

// sources calls the function look for each source file outside of this package.
func sources(t *testing.T, look func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	const top = "../.."
	for _, tree := range []string{"worker", "unwind", "ptrace"} {
		err := filepath.WalkDir(filepath.Join(top, tree), func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(top, path)
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testdata" || strings.HasSuffix(entry.Name(), "test") ||
				name == "ptrace/process"): // the one place
				return filepath.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err == nil {
				look(name, files, file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestLateReadsChangeNoResult finds functions whose read can write to their results after the timeout of WithTimeout: even
// "return nil, err" first writes to named results, and then reads them.
func TestLateReadsChangeNoResult(t *testing.T) {
	calls := 0
	sources(t, func(_ string, files *token.FileSet, file *ast.File) {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !callsWithTimeout(f) {
				continue
			}
			calls++
			results := map[string]bool{}
			if f.Type.Results != nil {
				for _, field := range f.Type.Results.List {
					for _, name := range field.Names {
						results[name.Name] = true
					}
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if _, ok := n.(*ast.FuncLit); !ok {
					return true
				}
				ast.Inspect(n, func(n ast.Node) bool {
					assign, ok := n.(*ast.AssignStmt)
					if !ok || assign.Tok == token.DEFINE {
						return true
					}
					for _, to := range assign.Lhs {
						if name, ok := to.(*ast.Ident); ok && results[name.Name] {
							t.Errorf("%s: %s is a result of %s: assign to a local variable", files.Position(to.Pos()), name.Name, f.Name.Name)
						}
					}
					return true
				})
				return false
			})
		}
	})
	if calls == 0 {
		t.Error("no function calls WithTimeout")
	}
}

func callsWithTimeout(f ast.Node) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if ok {
			selector, ok := call.Fun.(*ast.SelectorExpr)
			found = found || ok && selector.Sel.Name == "WithTimeout" && isPackage(selector.X, "process")
		}
		return true
	})
	return found
}

func isPackage(x ast.Expr, name string) bool {
	of, ok := x.(*ast.Ident)
	return ok && of.Name == name
}

// findReads returns the places in a declaration that read memory without a timeout, or ask for the end of a process.
func findReads(decl ast.Node) map[token.Pos]string {
	found := map[token.Pos]string{}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			switch name := of.Name + "." + n.Sel.Name; name {
			case "process.ReadMemory", "unix.ProcessVMReadv", "unix.SYS_PROCESS_VM_READV", "symbolize.ProcessMemory":
				found[n.Pos()] = name
			case "unix.ESRCH", "syscall.ESRCH":
				found[n.Pos()] = "ESRCH"
			}
		case *ast.CallExpr: // in package symbolize
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "ProcessMemory" {
				found[n.Pos()] = f.Name
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && strings.HasSuffix(text, "/mem") {
				found[n.Pos()] = "/proc/PID/mem"
			} else if err == nil && n.Kind == token.STRING && (text == "cmdline" || strings.HasSuffix(text, "/cmdline") ||
				text == "environ" || strings.HasSuffix(text, "/environ")) {
				found[n.Pos()] = "arguments" // the kernel takes the lock of the address space
			}
		case *ast.BinaryExpr: // stat.State == 'Z'
			state, ok := n.X.(*ast.SelectorExpr)
			letter, char := n.Y.(*ast.BasicLit)
			if ok && char && state.Sel.Name == "State" && letter.Kind == token.CHAR &&
				(letter.Value == "'Z'" || letter.Value == "'X'" || letter.Value == "'x'") {
				found[n.Pos()] = "State"
			}
		}
		return true
	})
	return found
}
