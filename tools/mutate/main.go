// Command mutate breaks lines of packages, one at a time, and runs the tests of their packages: a test should notice each.
// It changes no file: the Go command gets the changed file as an overlay.
//
//	mutate [-seed N] [-n LINES] [-timeout D] PACKAGE...
//
// The lines are drawn by a seed, which is printed. Each change is one of these:
//
//   - a comparison becomes its neighbour (< and <=, == and !=), && becomes ||, + becomes -
//   - the condition of an if statement is negated
//   - a statement that assigns or calls is removed
//   - a returned err becomes nil
//
// A change that does not compile does not count, and another line is drawn. It prints a line for each change, and ends
// with status 1 if a change was not noticed: each such line is to be looked at, since a change may have no effect that can
// be seen (a faster path, the text of a log line).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mutation replaces the bytes from begin to end of a file.
type mutation struct {
	pkg, file  string
	line       int
	begin, end int
	text       string
}

func main() {
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "draw the lines by this `number`")
	n := flag.Int("n", 40, "break this many `lines`")
	timeout := flag.Duration("timeout", 5*time.Minute, "end the tests of a package after this `duration`: a change may make them hang")
	flag.Parse()
	if err := run(*seed, *n, *timeout, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(seed uint64, n int, timeout time.Duration, patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("no package given, such as ./unwind/cfi")
	}
	all, err := mutations(patterns)
	if err != nil {
		return err
	}
	fmt.Printf("seed %d: %d of %d changes\n", seed, min(n, len(all)), len(all))
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// The same seed draws the same lines of the same files.
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	noticed, missed := 0, 0
	for _, m := range all {
		if noticed+missed == n {
			break
		}
		verdict, err := m.try(dir, timeout)
		switch {
		case err != nil:
			return err
		case verdict == compilesNot:
			continue
		case verdict == unnoticed:
			missed++
		default:
			noticed++
		}
		fmt.Printf("%-12s %s\n", verdict, m)
	}
	fmt.Printf("%d noticed, %d not noticed\n", noticed, missed)
	if missed > 0 {
		return fmt.Errorf("no test noticed %d of %d changes", missed, noticed+missed)
	}
	return nil
}

// mutations returns all changes of the production code of packages.
func mutations(patterns []string) ([]mutation, error) {
	out, err := exec.Command("go", append([]string{"list", "-json=Dir,ImportPath,GoFiles"}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []mutation
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			Dir, ImportPath string
			GoFiles         []string
		}
		if err = d.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			source, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			of, err := inFile(p.ImportPath, file, source)
			if err != nil {
				return nil, err
			}
			all = append(all, of...)
		}
	}
	return all, nil
}

// The operators that take the place of others.
var neighbours = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD,
}

// inFile returns the changes of a file. Generated files have none.
func inFile(pkg, file string, source []byte) ([]mutation, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(parsed) {
		return nil, nil
	}
	var all []mutation
	add := func(at, end token.Pos, text string) {
		p := set.Position(at)
		all = append(all, mutation{pkg, file, p.Line, p.Offset, set.Position(end).Offset, text})
	}
	of := func(n ast.Node) string {
		return string(source[set.Position(n.Pos()).Offset:set.Position(n.End()).Offset])
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if other, ok := neighbours[n.Op]; ok {
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other.String())
			}
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), "!("+of(n.Cond)+")")
		case *ast.BlockStmt:
			for _, s := range n.List {
				if removable(s) {
					add(s.Pos(), s.End(), strings.Repeat("\n", strings.Count(of(s), "\n")))
				}
			}
		case *ast.ReturnStmt:
			if last := len(n.Results) - 1; last >= 0 && of(n.Results[last]) == "err" {
				add(n.Results[last].Pos(), n.Results[last].End(), "nil")
			}
		}
		return true
	})
	return all, nil
}

// removable reports whether a statement can be taken out: calls, assignments to what exists, counts.
func removable(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt, *ast.IncDecStmt:
		return true
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE
	}
	return false
}

// String names the place, and shows the change and the whole line.
func (m mutation) String() string {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return err.Error()
	}
	was := strings.Join(strings.Fields(string(source[m.begin:m.end])), " ")
	now := strings.Join(strings.Fields(m.text), " ")
	line := strings.Split(string(source), "\n")[m.line-1]
	return fmt.Sprintf("%s/%s:%d: %q becomes %q in: %s", m.pkg, filepath.Base(m.file), m.line, was, now, strings.TrimSpace(line))
}

// The outcomes of a change.
const (
	compilesNot = "does not compile"
	unnoticed   = "NOT NOTICED"
	inTest      = "noticed"
	hung        = "hung" // which a person would notice too
)

// try runs the tests of the package with the change.
func (m mutation) try(dir string, timeout time.Duration) (string, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed := append(append(append([]byte{}, source[:m.begin]...), m.text...), source[m.end:]...)
	file, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	if err = os.WriteFile(file, changed, 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: file}})
	if err != nil {
		return "", err
	}
	if err = os.WriteFile(overlay, list, 0o600); err != nil {
		return "", err
	}
	test := filepath.Join(dir, "test")
	build := exec.Command("go", "test", "-vet=off", "-overlay", overlay, "-c", "-o", test, m.pkg)
	if err = build.Run(); err != nil {
		return compilesNot, nil // for example a variable that is used no more
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	run := exec.CommandContext(ctx, test, "-test.failfast")
	run.Dir = filepath.Dir(m.file)
	run.WaitDelay = 10 * time.Second
	err = run.Run()
	switch {
	case ctx.Err() != nil:
		return hung, nil
	case err != nil:
		return inTest, nil
	}
	return unnoticed, nil
}
