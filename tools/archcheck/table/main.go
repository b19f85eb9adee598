// Command table prints the results of virtual machines of scripts/check-arch.sh as a Markdown table. It reads the
// machines' output from standard input. With a file name it replaces the rows of the same machines in the table
// between the markers in the file. Each row contains its date. If the output has counts of instructions, the command
// replaces their tables too. It depends only on the marked lines of the tests.
//
//	table [doc/internals/benchmarks.md]
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/internal/archcheck"
)

// The lines around the table.
const (
	begin = "<!-- architectures: begin (made by `make check-arch`) -->"
	end   = "<!-- architectures: end -->"
)

// machines in the order of the rows, as uname -m says them.
var machines = []string{"x86_64", "aarch64", "ppc64le", "s390x", "riscv64"}

const qemuMarker = "@@qemu "

// row is a line of the table.
type row struct {
	archcheck.Result

	qemu, yama string
}

func main() {
	if err := run(os.Stdin, os.Args[1:], time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(results io.Reader, files []string, now time.Time) error {
	output, err := io.ReadAll(results)
	if err != nil {
		return err
	}
	counts, err := instructions(string(output), now)
	if err != nil {
		return err
	}
	rows, err := read(bytes.NewReader(output))
	if err != nil {
		return err
	}
	lines := make(map[string][]string)
	for _, r := range rows {
		lines[r.Machine] = append(lines[r.Machine], r.format(now))
	}
	if len(files) == 0 {
		fmt.Print(table(lines) + counts)
	}
	for _, file := range files {
		if err := replace(file, lines); err != nil {
			return err
		}
		if err := replaceInstructions(file, counts); err != nil {
			return err
		}
	}
	return nil
}

// replace puts the rows of machines into a file's table; other machines keep theirs.
func replace(file string, lines map[string][]string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found1 := strings.Cut(string(text), begin+"\n")
	old, after, found2 := strings.Cut(rest, end+"\n")
	if !found1 || !found2 {
		return fmt.Errorf("%s: the markers of the table are missing: %s", file, begin)
	}
	all := maps.Clone(lines)
	for line := range strings.Lines(old) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		machine := strings.TrimPrefix(cells[0], "| ")
		if _, ran := lines[machine]; slices.Contains(machines, machine) && !ran && len(cells) == len(columns) {
			all[machine] = append(all[machine], line)
		}
	}
	text = []byte(before + begin + "\n" + table(all) + end + "\n" + after)
	return os.WriteFile(file, text, 0o644)
}

// read collects the marked lines: qemu's version begins a machine, and Yama's line applies to all of its servers.
func read(results io.Reader) ([]row, error) {
	var rows []row
	qemu, first := "", 0
	lines := bufio.NewScanner(results)
	for lines.Scan() {
		if version, ok := strings.CutPrefix(lines.Text(), qemuMarker); ok {
			qemu, first = version, len(rows)
		}
		if yama, ok := strings.CutPrefix(lines.Text(), archcheck.YamaMarker); ok {
			for i := range rows[first:] {
				rows[first+i].yama = strings.Trim(yama, `"`)
			}
		}
		if result, ok := strings.CutPrefix(lines.Text(), archcheck.Marker); ok {
			r := row{qemu: qemu}
			if err := json.Unmarshal([]byte(result), &r.Result); err != nil {
				return nil, fmt.Errorf("%s: %w", result, err)
			}
			if !slices.Contains(machines, r.Machine) {
				return nil, fmt.Errorf("%s: an unknown machine", result)
			}
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil, errors.Join(errors.New("no result"), lines.Err())
	}
	return rows, lines.Err()
}

// columns are the columns of the table.
var columns = []string{
	"machine", "kernel", "PostgreSQL", "processes, kinds", "captures through SQL", "frames",
	"by frame pointer or back chain", "by instructions", "of signal handlers", "in the vDSO",
	"asleep, the same twice, and without a stop", "pause, emulated: median, largest (µs)", "`ptrace_scope` tried",
	"run, under",
}

// table returns the complete table with the rows of each machine.
func table(lines map[string][]string) string {
	var b strings.Builder
	b.WriteString("| " + strings.Join(columns, " | ") + " |\n|" + strings.Repeat(" --- |", len(columns)) + "\n")
	for _, machine := range machines {
		b.WriteString(strings.Join(lines[machine], ""))
	}
	return b.String()
}

// format is a row of the table.
func (r *row) format(now time.Time) string {
	return fmt.Sprintf("| %s | %s | %s | %d, %d | %d | %d | %d | %d | %d | %d "+
		"| %d, %d | %.0f, %.0f | %s | %s, qemu %s |\n",
		r.Machine, r.Kernel, r.PostgreSQL, r.Processes, r.Kinds, r.Captures, r.Frames, r.Chained, r.Followed, r.Signals,
		r.VDSO, r.Asleep, r.Unstopped, r.PauseP50, r.PauseMax, r.yama, now.UTC().Format("2 January 2006"), r.qemu)
}
