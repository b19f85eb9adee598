package rootfs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// opening are the functions that open files, look at them by a path, or change their mode, owner or times by a path.
var opening = map[string][]string{
	"os": {
		"Open", "OpenFile", "OpenRoot", "OpenInRoot", "ReadFile", "ReadDir", "DirFS", "CopyFS", "Stat", "Lstat", "Chmod", "Chown", "Lchown",
		"Chtimes",
	},
	"path/filepath": {"Glob", "Walk", "WalkDir", "EvalSymlinks"},
	"io/ioutil":     {"ReadFile", "ReadDir"},
	"syscall":       {"Open", "Openat", "Stat", "Lstat", "Access", "Chmod", "Chown", "Lchown", "Utimes", "UtimesNano"},
	"golang.org/x/sys/unix": {
		"Open", "Openat", "Openat2", "Stat", "Lstat", "Statx", "Fstatat", "Access", "Faccessat", "Chmod", "Fchmodat", "Chown", "Lchown",
		"Fchownat", "Utimes", "UtimesNano",
	},
	"debug/elf":       {"Open"},
	"debug/buildinfo": {"ReadFile"},
	"debug/macho":     {"Open"},
	"archive/zip":     {"OpenReader"},
	"crypto/tls":      {"LoadX509KeyPair"},
}

// Reasons for which a package opens a file itself.
const (
	ofKernel = "a small file that the kernel makes, in /proc or /sys"
	describe = "only describes a directory or a link of /proc, to compare it; stat(2) has no effect on a file"
	ofAdmin  = "a file that the command line, the environment or the configuration names"
	ofWorker = "in a directory that the worker has made for itself, or as the server's user in its data directory"
	theWay   = "this package"
	own      = "the file of this program"
	opened   = "a path that leads to an open file"
)

// allowed has the places that open files in another way than by this package: the file, a blank, the function.
var allowed = map[string]string{
	"ptrace/measure/allocs/target.go os.ReadFile":          ofKernel,
	"ptrace/measure/clusterbpf/online.go os.ReadFile":      ofKernel,
	"ptrace/bpf/features.go os.Stat":                       ofKernel,
	"ptrace/measure/waits/load.go os.ReadFile":             ofKernel,
	"ptrace/process/quota.go os.ReadFile":                  ofKernel,
	"ptrace/process/private.go os.ReadFile":                ofKernel,
	"ptrace/observe/running.go os.ReadFile":                ofKernel,
	"ptrace/priority.go unix.Open":                         ofKernel,
	"ptrace/measure/probe/calibrate_amd64.go os.Open":      own,
	"ptrace/measure/probe/budget.go os.ReadDir":            ofKernel,
	"ptrace/measure/probe/budget.go os.ReadFile":           ofKernel,
	"ptrace/measure/probe/session.go filepath.Glob":        ofKernel,
	"ptrace/measure/probe/session.go os.Stat":              describe,
	"ptrace/process/explain.go os.ReadFile":                ofKernel,
	"ptrace/process/guard.go os.ReadFile":                  ofKernel,
	"ptrace/process/memory.go unix.Open":                   ofKernel,
	"worker/history/incident/head.go os.OpenFile":          ofWorker,
	"worker/history/incident/textfile.go unix.Open":        ofWorker,
	"worker/history/incident/textfile.go unix.Openat":      ofWorker,
	"worker/history/incident/textfile.go filepath.WalkDir": ofWorker,
	"worker/screen/remote/token.go os.OpenFile":            ofAdmin,
	"worker/host/buildcache/buildcache.go unix.Open":       ofWorker,
	"worker/host/buildcache/buildcache.go unix.Openat":     ofWorker,
	"worker/host/buildcache/prune.go unix.Fstatat":         ofWorker,
	"worker/naming/symbolize/keptnames.go os.Open":         ofKernel,
	"worker/naming/symbolize/keptframes.go syscall.Stat":   "compares the file at a path with an open file; stat(2) has no effect on a file",
	"worker/measure/runningplan/cost.go os.ReadFile":       ofKernel,
	"ptrace/process/rights.go os.Stat":                     describe,
	"ptrace/process/proof.go os.Stat":                      describe,
	"worker/cli/console/denied.go filepath.EvalSymlinks":   ofAdmin,
	"worker/cli/console/denied.go os.Stat":                 describe,
	"ptrace/process/read.go unix.Open":                     ofKernel,
	"ptrace/process/task.go os.Open":                       ofKernel,
	"ptrace/process/task.go unix.Stat":                     describe,
	"ptrace/measure/waits/preempt.go os.Open":              ofKernel,
	"worker/history/command/serve.go filepath.Glob":        ofKernel,
	"worker/history/command/serve.go os.ReadDir":           ofKernel,
	"worker/history/command/serve.go os.ReadFile":          ofKernel,
	"worker/history/incident/files.go os.Lstat":            ofWorker,
	"worker/history/incident/files.go os.OpenFile":         ofAdmin,
	"worker/history/incident/files.go os.ReadDir":          ofAdmin,
	"worker/history/incident/files.go unix.Lstat":          ofWorker,
	"worker/history/incident/host.go os.ReadFile":          ofKernel,
	"worker/history/recorder/procs.go os.ReadDir":          ofKernel,
	"worker/history/recorder/procs.go os.ReadFile":         ofKernel,
	"worker/history/recorder/switches.go os.Open":          ofKernel,
	"worker/history/rules/file.go os.OpenFile":             ofAdmin,
	"worker/history/rules/run.go filepath.EvalSymlinks":    ofAdmin,
	"worker/history/rules/run.go unix.Faccessat":           ofAdmin,
	"worker/history/rules/run.go unix.Lstat":               ofAdmin,
	"worker/history/rules/run.go unix.Stat":                ofAdmin,
	"worker/cli/console/recorderdir.go os.ReadDir":         ofKernel,
	"worker/history/store/follow.go os.Lstat":              ofWorker,
	"worker/history/store/close.go os.Lstat":               ofWorker,
	"worker/history/store/close.go os.Open":                ofWorker,
	"worker/history/store/close.go os.OpenFile":            ofWorker,
	"worker/history/store/journal.go os.OpenFile":          ofWorker,
	"worker/history/store/prune.go os.DirFS":               ofWorker,
	"worker/history/store/prune.go os.ReadDir":             ofWorker,
	"worker/history/store/prune.go os.Lstat":               ofWorker,
	"worker/history/store/writer.go os.OpenFile":           ofWorker,
	"worker/history/store/writer.go os.Lstat":              ofWorker,
	"worker/history/store/writer.go unix.Lstat":            ofWorker,
	"worker/history/store/reader.go os.Lstat":              ofAdmin,
	"worker/history/store/reader.go os.OpenFile":           ofAdmin,
	"worker/history/store/reader.go os.ReadDir":            ofAdmin,
	"worker/cli/decode.go os.Open":                         ofAdmin,
	"worker/cli/limits.go os.Stat":                         ofKernel,
	"worker/cli/console/output.go os.Lstat":                ofAdmin,
	"worker/cli/console/output.go os.OpenFile":             ofAdmin,
	"worker/cli/console/output.go os.Stat":                 ofAdmin,
	"worker/cli/recordall.go unix.Fchownat":                "a new folder, in a directory to which only this user can write",
	"worker/cli/recordall.go unix.Fstatat":                 ofAdmin,
	"worker/cli/recordall.go unix.Open":                    ofAdmin,
	"worker/cli/report.go os.Open":                         ofAdmin,
	"worker/naming/debuginfod/cache.go os.OpenFile":        ofWorker,
	"worker/naming/debuginfod/cache.go os.Lstat":           ofWorker,
	"worker/naming/debuginfod/evict.go os.Lstat":           ofWorker,
	"worker/naming/debuginfod/env.go os.Stat":              "reads the owner of $HOME and $XDG_CACHE_HOME; stat(2) has no effect on a file",
	"worker/doctor/capability.go os.ReadFile":              ofKernel,
	"worker/doctor/confinement.go os.ReadFile":             ofKernel,
	"worker/doctor/confinement.go os.Stat":                 ofKernel,
	"worker/doctor/host.go os.ReadFile":                    ofKernel,
	"worker/doctor/worker.go os.ReadFile":                  ofKernel,
	"worker/serve/export/headers.go os.OpenFile":           ofAdmin,
	"worker/serve/export/spool.go filepath.EvalSymlinks":   ofWorker,
	"worker/serve/export/spool.go os.OpenFile":             ofWorker,
	"worker/serve/export/spool.go os.ReadDir":              ofWorker,
	"worker/serve/export/spool.go os.ReadFile":             ofWorker,
	"worker/serve/export/spool.go unix.Lstat":              ofWorker,
	"worker/measure/functrace/tracer.go os.Stat":           describe,
	"worker/host/rootfs/rootfile.go os.Lstat":              ofAdmin,
	"worker/host/slack.go os.ReadDir":                      ofKernel,
	"worker/host/resident.go unix.Stat":                    ofKernel,
	"worker/host/rlimits/rlimits.go syscall.Open":          describe,
	"worker/host/rootfs/mode.go unix.Chmod":                opened,
	"worker/host/rootfs/mode.go unix.Open":                 theWay,
	"worker/host/rootfs/inroot.go unix.Open":               theWay,
	"worker/host/rootfs/inroot.go unix.Openat":             theWay,
	"worker/host/rootfs/inroot.go unix.Openat2":            theWay,
	"worker/host/rootfs/read.go unix.Openat":               theWay,
	"worker/host/rootfs/view.go unix.Statx":                describe,
	"worker/serve/metrics/own.go os.ReadDir":               ofKernel,
	"worker/serve/metrics/own.go os.ReadFile":              ofKernel,
	"worker/serve/node/account.go unix.Open":               ofKernel,
	"worker/serve/node/account.go unix.Stat":               describe,
	"worker/serve/node/postmasters.go os.Stat":             describe,
	"worker/serve/node/scan.go os.Open":                    ofKernel,
	"worker/serve/node/scan.go os.ReadFile":                ofKernel,
	"worker/pg/cluster/datadir.go os.Open":                 ofKernel,
	"worker/pg/cluster/datadir.go filepath.EvalSymlinks":   describe,
	"worker/pg/cluster/datadir.go os.Stat":                 describe,
	"worker/pg/cluster/member.go os.Stat":                  describe,
	"worker/pg/cluster/namespace.go os.ReadDir":            ofKernel,
	"worker/pg/cluster/namespace.go os.Stat":               describe,
	"worker/pg/cluster/passfile.go os.Stat":                ofAdmin,
	"worker/pg/cluster/pooler.go filepath.Glob":            ofKernel,
	"worker/pg/cluster/pooler.go os.Open":                  ofKernel,
	"worker/pg/cluster/service.go os.ReadFile":             ofAdmin,
	"worker/pg/cluster/user.go os.ReadFile":                ofKernel,
	"worker/naming/symbolize/moved.go os.ReadFile":         ofKernel,
	"worker/serving.go unix.Access":                        ofAdmin,
	"worker/serve/spool/deliver.go unix.Openat":            ofWorker,
	"worker/serve/spool/dir.go filepath.Glob":              ofWorker,
	"worker/serve/spool/dir.go unix.Chmod":                 opened,
	"worker/serve/spool/dir.go os.OpenFile":                ofWorker,
	"worker/serve/spool/dir.go unix.Access":                ofWorker,
	"worker/serve/spool/dir.go unix.Faccessat":             ofWorker,
	"worker/serve/spool/dir.go unix.Openat":                ofWorker,
	"worker/serve/spool/dir.go unix.Stat":                  ofWorker,
	"worker/serve/spool/housekeeping.go unix.Fstatat":      ofWorker,
	"worker/serve/spool/livenessthread.go unix.Open":       ofWorker,
	"worker/serve/spool/lock.go os.Lstat":                  ofWorker,
	"worker/serve/spool/lock.go os.OpenFile":               ofWorker,
	"worker/serve/spool/pidfile.go os.OpenFile":            ofWorker,
	"worker/serve/spool/serve.go unix.Openat":              ofWorker,
	"worker/measure/waitevent/timer.go os.ReadFile":        ofKernel,
	"worker/serve/web/address.go os.Lstat":                 ofAdmin,
	"worker/serve/web/files.go tls.LoadX509KeyPair":        ofAdmin,
	"worker/serve/web/tls.go os.Stat":                      ofAdmin,
	"worker/serve/web/tls.go tls.LoadX509KeyPair":          ofAdmin,
	"worker/serve/web/token.go os.OpenFile":                ofAdmin,
	"worker/serve/web/token.go syscall.Stat":               ofAdmin,
}

// TestNoOtherWay: files that a user may have chosen are opened and changed by this package only.
func TestNoOtherWay(t *testing.T) {
	const top = "../../.."
	used := map[string]bool{}
	for _, tree := range []string{"worker", "unwind", "ptrace"} {
		err := filepath.WalkDir(filepath.Join(top, tree), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testdata" || strings.HasSuffix(entry.Name(), "test")):
				return filepath.SkipDir // packages of the tests
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			name, err := filepath.Rel(top, path)
			if err != nil {
				return err
			}
			calls, err := openings(path)
			for place, call := range calls {
				key := name + " " + call
				used[key] = true
				if allowed[key] == "" {
					t.Errorf("%s: %s: open or change the file by package rootfs, or give the reason here", place, call)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for key := range allowed {
		if !used[key] {
			t.Errorf("%s: this exception has no call", key)
		}
	}
}

// openings returns the uses of the functions in a source file, by their places.
func openings(path string) (map[string]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	found, packages := map[string]string{}, map[string]string{}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if _, ok := opening[imported]; ok && name == "." {
			found[files.Position(spec.Pos()).String()] = fmt.Sprintf("import . %q", imported)
		}
		packages[name] = imported
	}
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		of, ok := selector.X.(*ast.Ident)
		if ok && slices.Contains(opening[packages[of.Name]], selector.Sel.Name) {
			found[files.Position(selector.Pos()).String()] = of.Name + "." + selector.Sel.Name
		}
		return true
	})
	return found, nil
}
