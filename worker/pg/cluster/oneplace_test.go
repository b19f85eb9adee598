package cluster_test

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

// Reasons to look at the files by which a server is found.
const (
	searching  = "lists candidates on the whole host, which this package then verifies"
	openFile   = "opens the program's file, and does not decide what it is"
	atTurn     = "gives the file that the kernel runs to FindProgram, which decides"
	showOnly   = "shows the name, or compares programs of the same server"
	ownFile    = "this program's own file or directory"
	serverDir  = "reads how the server names its directory, which package rootfs has opened"
	flagName   = "the name of a flag"
	forCluster = "reads it once for package cluster"
	otherFile  = "resolves a path in the namespace of a process"
)

// elsewhere has the files of other packages that read a process's program or directory, or postmaster.pid, with the
// reason.
var elsewhere = map[string]string{
	"ptrace/measure/probe/calibrate_amd64.go exe":  ownFile,
	"ptrace/measure/probe/session.go exe":          openFile,
	"ptrace/process/proof.go exe":                  forCluster,
	"ptrace/process/rights.go exe":                 showOnly,
	"worker/measure/heap/locate.go exe":            openFile,
	"worker/capture/contexts.go exe":               atTurn,
	"worker/capture/levels.go exe":                 atTurn,
	"worker/capture/stacknamer.go exe":             atTurn,
	"worker/cli/core.go exe":                       flagName,
	"worker/cli/decode.go exe":                     flagName,
	"worker/cli/ignored.go exe":                    flagName,
	"worker/cli/node.go exe":                       ownFile,
	"worker/cli/topcmd/measure.go exe":             ownFile,
	"worker/doctor/server.go exe":                  showOnly,
	"worker/measure/functrace/tracer.go exe":       showOnly,
	"worker/history/command/command.go exe":        ownFile,
	"worker/host/resident.go exe":                  ownFile,
	"worker/host/rootfs/inroot.go cwd":             otherFile,
	"worker/serve/node/postmasters.go cwd":         searching,
	"worker/serve/node/scan.go cwd":                searching,
	"worker/serve/node/scan.go exe":                searching,
	"worker/serve/spool/pidfile.go postmaster.pid": serverDir,
	"worker/naming/symbolize/candidates.go exe":    openFile,
	"worker/naming/symbolize/keptnames.go exe":     ownFile,
	"worker/naming/symbolize/moved.go exe":         openFile,
}

// TestOneDescription finds code outside of this package that decides whether a process is a server, or where the
// server's data directory is.
func TestOneDescription(t *testing.T) {
	const top = "../../.."
	used := map[string]bool{}
	for _, tree := range []string{"worker", "ptrace"} {
		err := filepath.WalkDir(filepath.Join(top, tree), func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(top, path)
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testdata" || strings.HasSuffix(entry.Name(), "test") ||
				name == "worker/pg/cluster"):
				return filepath.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				text, _ := strconv.Unquote(literal.Value)
				for _, what := range []string{"exe", "cwd", "postmaster.pid"} {
					if text != what && !strings.HasSuffix(text, "/"+what) {
						continue
					}
					key := name + " " + what
					if used[key] = true; elsewhere[key] == "" {
						t.Errorf("%s: %q: ask package cluster, or give the reason here",
							files.Position(literal.Pos()), text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for key := range elsewhere {
		if !used[key] {
			t.Errorf("%s: this exception is not used", key)
		}
	}
}
