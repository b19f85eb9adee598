package layout_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readers are the folders with packages that read the structures of a server. Their offsets come from package layout.
//
//nolint:gochecknoglobals // a table
var readers = []string{"worker/capture", "worker/measure", "worker/pg"}

// notReaders are the packages below readers that have no offsets of a server's structures, with the reason.
//
//nolint:gochecknoglobals // a table
var notReaders = map[string]string{
	"worker/pg/layout":         "it has them all",
	"worker/measure/functrace": "it reads code and arguments of any program",
	"worker/measure/heap":      "it knows no PostgreSQL",
}

// The reasons of otherNumbers. None of them is an offset in a structure of PostgreSQL.
const (
	size        = "the size of a value"
	instruction = "the length or the form of an instruction"
	count       = "a number of things"
	address     = "a socket's address"
	text        = "a place in a text, or a part of one"
	column      = "a column of a view of progress, or a version"
	version     = "a major version"
	percent     = "the factor of a percentage"
)

// otherNumbers are the numbers that the test knows, with their reason. A star stands for all numbers of a file.
//
//nolint:gochecknoglobals // a table
var otherNumbers = map[string]string{
	"worker/capture/core.go frame":                                  size,
	"worker/capture/coregoroutines.go page":                         size,
	"worker/capture/corestream.go *":                                text,
	"worker/capture/goroutines.go threadStack":                      size,
	"worker/capture/plans.go 7":                                     size,
	"worker/capture/plans.go 8":                                     size,
	"worker/capture/plans.go planFrames":                            count,
	"worker/capture/sharedstacks.go entry":                          size,
	"worker/capture/stacknamer.go maxKnownStacks":                   count,
	"worker/measure/clusterprofile/clusterprofile.go 64":            count,
	"worker/measure/clusterprofile/clusterprofile.go maxStackBytes": size,
	"worker/measure/clusterprofile/clusterprofile.go redZone":       size,
	"worker/measure/clusterprofile/clusterprofile.go ringSize":      size,
	"worker/measure/clusterprofile/options.go 100":                  percent,
	"worker/measure/clusterprofile/options.go DefaultRate":          count,
	"worker/measure/runningplan/exercises.go *":                     count,
	"worker/measure/waitevent/session.go 100":                       percent,
	"worker/measure/waitevent/stacks.go 24":                         size,
	"worker/measure/waitevent/text.go 100":                          percent,
	"worker/measure/waitevent/text.go figures":                      count,
	"worker/measure/waitevent/text.go figures - 1":                  count,
	"worker/measure/waitevent/text.go 5":                            text,
	"worker/measure/waitevent/text.go 10":                           text,
	"worker/measure/waitevent/timer.go 100":                         percent,
	"worker/pg/cluster/caps.go 32":                                  count,
	"worker/pg/cluster/control.go half":                             size,
	"worker/pg/cluster/identity.go size":                            size,
	"worker/pg/cluster/control.go most":                             size,
	"worker/pg/cluster/datadir.go 64":                               size,
	"worker/pg/cluster/datadir.go maxPIDFile":                       size,
	"worker/pg/cluster/pooler.go inode":                             text,
	"worker/pg/cluster/view.go point":                               text,
	"worker/pg/levels/identify.go lea":                              instruction,
	"worker/pg/levels/levels.go 4":                                  size,
	"worker/pg/levels/levels.go MaxQuery":                           size,
	"worker/pg/levels/levels.go maxStatement":                       size,
	"worker/pg/levels/levels.go reach":                              size,
	"worker/pg/levels/lock.go numberSize":                           size,
	"worker/pg/levels/lock.go pointerSize":                          size,
	"worker/pg/levels/plpgsql.go numberSize":                        size,
	"worker/pg/levels/plpgsql.go pointerSize":                       size,
	"worker/pg/levels/sampled.go word":                              size,
	"worker/pg/levels/server.go digits":                             text,
	"worker/pg/levels/text.go form":                                 instruction,
	"worker/pg/levels/text.go load":                                 instruction,
	"worker/pg/levels/text.go piece":                                size,
	"worker/pg/levels/wait.go 14":                                   version,
	"worker/pg/levels/wait.go 19":                                   version,
	"worker/pg/levels/waitnames.go 28":                              count,
	"worker/pg/locks/other.go 16":                                   count,
	"worker/pg/locks/pins.go named":                                 count,
	"worker/pg/locks/read.go epoch":                                 count,
	"worker/pg/locks/relname.go maxFile":                            size,
	"worker/pg/locks/shmem.go 8":                                    size,
	"worker/pg/memctx/figures.go pointer":                           size,
	"worker/pg/memctx/pages.go lineSize":                            size,
	"worker/pg/memctx/pages.go pageSize":                            size,
	"worker/pg/memctx/pgmemory.go DefaultAttempts":                  count,
	"worker/pg/memctx/pgmemory.go DefaultMaxContexts":               count,
	"worker/pg/memctx/pgmemory.go DefaultMaxPages":                  count,
	"worker/pg/memctx/walk.go 128":                                  size,
	"worker/pg/plan/a64.go *":                                       instruction,
	"worker/pg/plan/commands.go *":                                  column,
	"worker/pg/plan/figures.go kilobyte":                            size,
	"worker/pg/plan/memory.go bits":                                 count,
	"worker/pg/plan/memory.go clusterSize":                          size,
	"worker/pg/plan/memory.go maxBatch * clusterSize":               size,
	"worker/pg/plan/memory.go pageSize":                             size,
	"worker/pg/plan/phrase.go whole":                                percent,
	"worker/pg/plan/plan.go maxLevels":                              count,
	"worker/pg/plan/plan.go maxLevels / 2":                          count,
	"worker/pg/plan/progress.go percent":                            percent,
	"worker/pg/plan/running.go *":                                   instruction,
	"worker/pg/plan/speculated.go *":                                instruction,
	"worker/pg/plan/title.go 5":                                     count,
	"worker/pg/plan/title.go maxName - 1":                           size,
	"worker/pg/plan/tree.go maxName":                                size,
	"worker/pg/state/barrier.go 8":                                  size,
	"worker/pg/state/settings.go page":                              size,
	"worker/pg/state/state.go 16":                                   address,
	"worker/pg/state/state.go bgwTypeLen":                           size,
	"worker/pg/state/logins.go maxName":                             size,
	"worker/pg/state/seen.go most":                                  count,
	"worker/measure/waitevent/text.go most":                         count,
	"worker/pg/locks/sharednames.go maxShared":                      size,
	"worker/pg/locks/sharednames.go regularShare":                   count,
	"worker/pg/locks/sharednames.go searchShare":                    count,
	"worker/pg/state/state.go moreSlots":                            count,
	"worker/pg/state/state.go nameDataLen":                          size,
	"worker/pg/state/state.go v4":                                   address,
	"worker/pg/state/state.go v6":                                   address,
}

// TestReadersHaveNoOffsets finds numbers that look like offsets in the packages that read a server's memory. Such a
// number is added or subtracted, multiplies an index, selects bytes, is the size of an array of bytes, or is a value in
// a table or in a structure. It may be a literal, a constant or an expression of these.
func TestReadersHaveNoOffsets(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, dir := range packagesBelow(t, readers) {
		for _, found := range offsetsIn(t, dir) {
			all := found.file + " *"
			seen[found.what], seen[all] = true, true
			if otherNumbers[found.what] == "" && otherNumbers[all] == "" {
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

// TestKernelProgramsHaveNoOffsets finds addresses with a number as offset in the programs for the kernel. They get
// offsets from user space.
func TestKernelProgramsHaveNoOffsets(t *testing.T) {
	t.Parallel()
	// others are offsets of other programs.
	others := map[string]string{
		"thread_pointer - 8": "where Go's runtime has the address of the goroutine",
		"address - 8":        "where malloc has the size of a block",
		"call->old - 8":      "where malloc has the size of a block",
	}
	files := 0
	err := filepath.WalkDir("../../../ptrace", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".c") && !strings.HasSuffix(path, ".h") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, found := range offsetsInC(string(source)) {
			if others[found] == "" {
				t.Errorf("%s: %q looks like an offset: take it from package layout in user space", path, found)
			}
		}
		return nil
	})
	if err != nil || files < 4 {
		t.Fatalf("%d files, %v", files, err)
	}
}

// userReads finds the address of a read of user memory, and numbersInC a number that is added to something or
// subtracted.
//
//nolint:gochecknoglobals // patterns
var (
	userReads  = regexp.MustCompile(`\b(?:bpf_probe_read_user(?:_str)?|bpf_copy_from_user(?:_task)?|fetch(?:_u32|_u64)?)\(([^;{]*)`)
	numbersInC = regexp.MustCompile(`\w+(?:->\w+|\.\w+)* [+-] (?:0x[0-9a-fA-F]+|[0-9]+)\b`)
)

// offsetsInC returns the sums with a number in the reads of user memory.
func offsetsInC(source string) (found []string) {
	for _, call := range userReads.FindAllStringSubmatch(source, -1) {
		found = append(found, numbersInC.FindAllString(call[1], -1)...)
	}
	return found
}

// TestOffsetsAreFound verifies the search with examples of each form.
func TestOffsetsAreFound(t *testing.T) {
	t.Parallel()
	const source = `package x
const procPID = 64
const latch = procPID - 0x10
const most = 1 << 20
type deref struct { offset, length int }
var kinds = []struct{ name string; flag int }{{name: "EXIT", flag: 12}, {"DO", 24}}
func f(b []byte, at uint64, i int, l *layout) {
	_, _, _, _ = b[24:], at+16, at+procPID, b[14]
	_, _, _ = at+uint64(latch), at-8, 832*i
	_, _ = deref{offset: l.x, length: 56}, deref{l.x, procPID/2+1}
	var row [procPID]byte
	l.since = 136
	_ = word(at, 44)
	_, _, _ = b[at:at+most], at + 2, procPID+4
}`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "x.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range search(set, "x", []*ast.File{file}) {
		got = append(got, strings.TrimPrefix(f.what, "x/x.go "))
	}
	want := []string{
		"12", "24", "24", "16", "procPID", "14", "uint64(latch)", "8", "832", "56", "procPID / 2 + 1", "procPID", "136", "44", "most",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("found\n%q, not\n%q", got, want)
	}
	const c = `bpf_probe_read_user(&v, sizeof(v), (void *)(proc->start + 0x2c8)); fetch_u32(status + offset, NULL); x = y + 712;
		fetch(&w, sizeof(w), proc + 712, NULL);`
	if found := offsetsInC(c); !slices.Equal(found, []string{"proc->start + 0x2c8", "proc + 712"}) {
		t.Errorf("in C: %q", found)
	}
}

// finding is a number that may be an offset.
type finding struct{ at, file, what string }

// packagesBelow returns the packages below some folders, relative to the repository.
func packagesBelow(t *testing.T, folders []string) (dirs []string) {
	t.Helper()
	for _, folder := range folders {
		root := filepath.Join("../../..", folder)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			dir := filepath.Join(folder, strings.TrimPrefix(path, root))
			if entry.Name() == "testdata" || notReaders[dir] != "" {
				return filepath.SkipDir
			}
			if names, err := filepath.Glob(filepath.Join(path, "*.go")); err != nil || len(names) > 0 {
				dirs = append(dirs, dir)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

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
	shared := constants{}
	for range 3 { // a constant may depend on a later constant
		for _, file := range files {
			for _, d := range file.Decls {
				if d, ok := d.(*ast.GenDecl); ok {
					shared.declare(d)
				}
			}
		}
	}
	for _, file := range files {
		for _, d := range file.Decls {
			c := maps.Clone(shared) // with the constants of this function
			ast.Inspect(d, c.declare)
			ast.Inspect(d, func(n ast.Node) bool {
				for _, p := range places(n) {
					if v := c.value(p.number); v != nil && !c.part(n) && constant.Compare(v, token.GEQ, constant.MakeInt64(p.least)) {
						at := set.Position(p.number.Pos())
						name := dir + "/" + filepath.Base(at.Filename)
						found = append(found, finding{fmt.Sprintf("%s:%d", at.Filename, at.Line), name, name + " " + written(p.number)})
					}
				}
				return true
			})
		}
	}
	return found
}

// constants are integer constants by name.
type constants map[string]constant.Value

// declare adds the constants of a declaration.
func (c constants) declare(n ast.Node) bool {
	if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
		for _, spec := range d.Specs {
			if s, ok := spec.(*ast.ValueSpec); ok {
				for i, name := range s.Names {
					if i < len(s.Values) {
						if v := c.value(s.Values[i]); v != nil {
							c[name.Name] = v
						}
					}
				}
			}
		}
	}
	return true
}

// part reports whether a node is a constant itself. Then its value counts where it is used, not its operands.
func (c constants) part(n ast.Node) bool {
	e, ok := n.(ast.Expr)
	return ok && c.value(e) != nil
}

// value returns the value of an integer constant, nil if e is another expression.
func (c constants) value(e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.INT {
			return constant.MakeFromLiteral(e.Value, e.Kind, 0)
		}
	case *ast.Ident:
		return c[e.Name]
	case *ast.ParenExpr:
		return c.value(e.X)
	case *ast.CallExpr:
		if name, ok := e.Fun.(*ast.Ident); ok && len(e.Args) == 1 && isInteger(name.Name) {
			return c.value(e.Args[0])
		}
	case *ast.BinaryExpr:
		x, y := c.value(e.X), c.value(e.Y)
		if x == nil || y == nil {
			return nil
		}
		switch e.Op {
		case token.SHL, token.SHR:
			if n, ok := constant.Uint64Val(y); ok && n < 64 {
				return constant.Shift(x, e.Op, uint(n))
			}
		case token.QUO:
			if constant.Sign(y) != 0 {
				return constant.BinaryOp(x, token.QUO_ASSIGN, y) // of integers
			}
		case token.ADD, token.SUB, token.MUL, token.AND, token.OR, token.AND_NOT:
			return constant.BinaryOp(x, e.Op, y)
		}
	}
	return nil
}

func isInteger(name string) bool {
	switch name {
	case "byte", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "uintptr":
		return true
	}
	return false
}

// written returns an expression as in the source.
func written(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Value
	case *ast.Ident:
		return e.Name
	case *ast.ParenExpr:
		return "(" + written(e.X) + ")"
	case *ast.CallExpr:
		return written(e.Fun) + "(" + written(e.Args[0]) + ")"
	case *ast.BinaryExpr:
		return written(e.X) + " " + e.Op.String() + " " + written(e.Y)
	}
	return "?"
}

// place is an expression in which an offset or the size of a structure would be. It counts from the value least on.
type place struct {
	number ast.Expr
	least  int64
}

// Values below offset are too common. Sizes up to a word's are those of numbers and pointers.
const offset, structure = 4, 9

// places returns the places of a node.
func places(n ast.Node) (found []place) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		switch n.Op {
		case token.ADD, token.SUB:
			return []place{{n.X, offset}, {n.Y, offset}}
		case token.MUL:
			if !ofTime(n.X) && !ofTime(n.Y) {
				return []place{{n.X, structure}, {n.Y, structure}}
			}
		}
	case *ast.SliceExpr:
		if n.Low != nil {
			return []place{{n.Low, offset}}
		}
	case *ast.IndexExpr:
		return []place{{n.Index, offset}}
	case *ast.ArrayType:
		if name, ok := n.Elt.(*ast.Ident); ok && name.Name == "byte" && n.Len != nil {
			return []place{{n.Len, structure}}
		}
	case *ast.CompositeLit:
		for _, e := range n.Elts {
			if pair, ok := e.(*ast.KeyValueExpr); ok {
				found = append(found, place{pair.Value, offset})
			} else {
				found = append(found, place{e, structure})
			}
		}
	case *ast.AssignStmt:
		if n.Tok == token.ASSIGN && len(n.Lhs) == len(n.Rhs) {
			for i, l := range n.Lhs {
				if _, ok := l.(*ast.SelectorExpr); ok {
					found = append(found, place{n.Rhs[i], offset})
				}
			}
		}
	case *ast.CallExpr:
		if least, ok := reads[called(n)]; ok {
			for _, e := range n.Args {
				found = append(found, place{e, least})
			}
		}
	}
	return found
}

// reads are the functions that read a structure or a member of it, with the least value of an argument that counts.
//
//nolint:gochecknoglobals // a table
var reads = map[string]int64{
	"u16": offset, "u32": offset, "u64": offset, "i32": offset, "at": offset, "half": offset, "octet": offset, "word": offset,
	"number": offset, "long": offset, "flag": offset, "liveWord": offset, "pointer": offset, "At": offset,
	"one": structure, "full": structure, "live": structure, "Frozen": structure, "ReadIn": structure, "read": structure,
}

// called returns the name of a called function or method.
func called(n *ast.CallExpr) string {
	switch f := n.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// ofTime reports whether an expression is a unit of time, such as time.Second.
func ofTime(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "time"
}
