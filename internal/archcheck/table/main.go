// Command table prints what the virtual machines of scripts/check-arch.sh have shown, as a table in Markdown, from what
// they printed, on standard input; with a file's name it puts the table between the markers there. It knows nothing of
// the tests but the lines that they mark.
//
//	table [README.md]
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"pg_stat_backtrace/internal/archcheck"
)

// The lines between which the table stands.
const (
	begin = "<!-- architectures: begin (made by `make check-arch`) -->"
	end   = "<!-- architectures: end -->"
)

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
	rows, err := read(results)
	if err != nil {
		return err
	}
	table := format(rows, now)
	fmt.Print(table)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		before, rest, found1 := strings.Cut(string(text), begin+"\n")
		_, after, found2 := strings.Cut(rest, end+"\n")
		if !found1 || !found2 {
			return fmt.Errorf("%s: the markers of the table are missing: %s", file, begin)
		}
		text = []byte(before + begin + "\n" + table + end + "\n" + after)
		if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // a README
			return err
		}
	}
	return nil
}

// read collects the marked lines: qemu's version begins a machine, Yama's line counts for all of its servers.
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
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil, errors.Join(errors.New("no result"), lines.Err())
	}
	return rows, lines.Err()
}

// format is the table.
func format(rows []row, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Of %s, qemu %s:\n\n", now.UTC().Format("2 January 2006"), rows[0].qemu)
	columns := []string{
		"machine", "kernel", "PostgreSQL", "processes, kinds", "captures through SQL", "frames",
		"by frame pointer or back chain", "of signal handlers", "in the vDSO", "asleep, the same twice, and without a stop",
		"pause, emulated: median, largest (µs)",
		"`ptrace_scope` tried",
	}
	b.WriteString("| " + strings.Join(columns, " | ") + " |\n|" + strings.Repeat(" --- |", len(columns)) + "\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %d, %d | %d | %d | %d | %d | %d | %d, %d | %.0f, %.0f | %s |\n",
			r.Machine, r.Kernel, r.PostgreSQL, r.Processes, r.Kinds, r.Captures, r.Frames, r.Chained, r.Signals, r.VDSO,
			r.Asleep, r.Unstopped, r.PauseP50, r.PauseMax, r.yama)
	}
	return b.String()
}
