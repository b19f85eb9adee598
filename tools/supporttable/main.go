// Command supporttable generates doc/internals/benchmarks.md's table of supported PostgreSQL versions: the end-to-end tests
// that passed on each version. It reads the output of `go test -json` from standard input.
//
//	supporttable doc/internals/benchmarks.md         replace the table between the markers; not when a test has failed
//	supporttable -check doc/internals/benchmarks.md  exit with status 1 when the table differs, or a test has failed
//
// A row is a group of TestContract, a column a version. The command depends only on the names of the tests,
// TestContract/VERSION/GROUP. If several servers of a version were tested, all of them count.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The lines around the table.
const (
	begin = "<!-- support table: begin (made by `make support-table`) -->"
	end   = "<!-- support table: end -->"
)

const test = "TestContract/"

// table contains the results of the tests.
type table struct {
	versions []int    // majors, ascending
	groups   []string // in the order in which they began
	// passed says for group and version whether all tests passed; absent is not tested.
	passed map[string]map[int]bool
}

func main() {
	check := flag.Bool("check", false, "change nothing; fail when the table is another")
	flag.Parse()
	if err := run(os.Stdin, flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "supporttable:", err)
		os.Exit(1)
	}
}

var errStale = errors.New("the table of supported versions is stale: run `make support-table`")

func run(results io.Reader, file string, check bool) error {
	t, err := read(results)
	if err != nil {
		return err
	}
	if failed := t.failed(); len(failed) > 0 {
		return fmt.Errorf("%s is as it was: %s failed", file, strings.Join(failed, ", "))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	replaced, err := t.replace(string(text))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", file, err)
	case replaced == string(text):
		return nil
	case check:
		return fmt.Errorf("%s: %w", file, errStale)
	}
	return os.WriteFile(file, []byte(replaced), 0o644)
}

// read collects the outcome of each group on each version.
func read(results io.Reader) (table, error) {
	t := table{passed: make(map[string]map[int]bool)}
	lines := bufio.NewScanner(results)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct {
			Action string `json:"Action"`
			Test   string `json:"Test"`
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // a message of the go command
		}
		name, ours := strings.CutPrefix(e.Test, test)
		version, group, _ := strings.Cut(name, "/")
		major, err := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
		if !ours || err != nil || group == "" || strings.Contains(group, "/") {
			continue
		}
		t.note(strings.ReplaceAll(group, "_", " "), major, e.Action)
	}
	if err := lines.Err(); err != nil {
		return t, err
	}
	if len(t.groups) == 0 {
		return t, errors.New("the results hold no " + test + "VERSION/GROUP")
	}
	slices.Sort(t.versions)
	return t, nil
}

func (t *table) note(group string, major int, action string) {
	if t.passed[group] == nil {
		t.groups = append(t.groups, group)
		t.passed[group] = make(map[int]bool)
	}
	if !slices.Contains(t.versions, major) {
		t.versions = append(t.versions, major)
	}
	before, known := t.passed[group][major]
	switch action {
	case "pass":
		t.passed[group][major] = before || !known
	case "fail":
		t.passed[group][major] = false
	}
}

// failed returns the failed tests, by group and version.
func (t *table) failed() []string {
	var names []string
	for _, g := range t.groups {
		for _, v := range t.versions {
			if passed, tested := t.passed[g][v]; tested && !passed {
				names = append(names, fmt.Sprintf("%q on %d", g, v))
			}
		}
	}
	return names
}

// replace puts the table between the markers.
func (t *table) replace(text string) (string, error) {
	before, rest, found1 := strings.Cut(text, begin+"\n")
	_, after, found2 := strings.Cut(rest, end+"\n")
	if !found1 || !found2 {
		return "", errors.New("the markers of the table are missing: " + begin)
	}
	return before + begin + "\n" + t.String() + end + "\n" + after, nil
}

// String is the table in Markdown.
func (t *table) String() string {
	var b strings.Builder
	b.WriteString("| proven end to end on PostgreSQL |")
	for _, v := range t.versions {
		fmt.Fprintf(&b, " %d |", v)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(t.versions)) + "\n")
	for _, g := range t.groups {
		fmt.Fprintf(&b, "| %s |", g)
		for _, v := range t.versions {
			b.WriteString(" " + t.cell(g, v) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (t *table) cell(group string, version int) string {
	passed, known := t.passed[group][version]
	switch {
	case !known:
		return "–"
	case passed:
		return "yes"
	}
	return "**no**"
}
