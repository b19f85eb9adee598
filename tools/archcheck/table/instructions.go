package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/internal/archcheck"
)

// The lines around the tables of instructions.
const (
	beginInstructions = "<!-- instructions: begin (made by `make check-arch`) -->"
	endInstructions   = "<!-- instructions: end -->"
)

// ways are the ways of timing, in the order of the columns. The first one is without timing.
var ways = []string{"off", "fentry", "fentry, by query", "tracepoints", "tracepoints, by query"}

// instructions returns the tables of the last marked line of the output; "" if there is none.
func instructions(output string, now time.Time) (string, error) {
	var text, qemu string
	for line := range strings.Lines(output) {
		if version, ok := strings.CutPrefix(line, qemuMarker); ok {
			qemu = strings.TrimSpace(version)
		}
		counts, ok := strings.CutPrefix(line, archcheck.InstructionsMarker)
		if !ok {
			continue
		}
		var i archcheck.Instructions
		if err := json.Unmarshal([]byte(counts), &i); err != nil {
			return "", fmt.Errorf("%s: %w", counts, err)
		}
		text = fmt.Sprintf("Linux %s, PostgreSQL %s, %s, qemu %s.\n\n", i.Kernel, i.PostgreSQL,
			now.UTC().Format("2 January 2006"), qemu) + instructionTables(&i)
	}
	return text, nil
}

// instructionTables returns a table of transactions, with the added share, and one of system calls.
func instructionTables(i *archcheck.Instructions) string {
	var b strings.Builder
	b.WriteString("| instructions of a transaction | " + strings.Join(ways, " | ") + " |\n|" +
		strings.Repeat(" --- |", len(ways)+1) + "\n")
	for _, mode := range slices.Sorted(maps.Keys(i.Transactions)) {
		n := i.Transactions[mode]
		b.WriteString("| pgbench select-only, " + mode)
		for _, way := range ways {
			if way == ways[0] {
				fmt.Fprintf(&b, " | %.0f", n[way])
			} else {
				fmt.Fprintf(&b, " | %+.2f %%", 100*(n[way]/n[ways[0]]-1))
			}
		}
		b.WriteString(" |\n")
	}
	single := []string{"off", "fentry", "tracepoints"}
	b.WriteString("\n| instructions of a system call | " + strings.Join(single, " | ") + " |\n|" +
		strings.Repeat(" --- |", len(single)+1) + "\n")
	for _, name := range slices.Sorted(maps.Keys(i.Calls[ways[0]])) {
		b.WriteString("| " + name)
		for _, way := range single {
			fmt.Fprintf(&b, " | %.0f", i.Calls[way][name])
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

// replaceInstructions puts the tables between the markers of a file; "" leaves the file as it is.
func replaceInstructions(file, tables string) error {
	if tables == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found1 := strings.Cut(string(text), beginInstructions+"\n")
	_, after, found2 := strings.Cut(rest, endInstructions+"\n")
	if !found1 || !found2 {
		return errors.New(file + ": the markers of the table are missing: " + beginInstructions)
	}
	text = []byte(before + beginInstructions + "\n" + tables + endInstructions + "\n" + after)
	return os.WriteFile(file, text, 0o644)
}
