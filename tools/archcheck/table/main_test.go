package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const results = `@@qemu 7.2
@@result {"machine":"s390x","kernel":"6.1","postgresql":"15.18","processes":12,"kinds":8,"captures":400,` +
	`"frames":9000,"chained":5,"followed":6,"signals":7,"vdso":8}
@@yama "0, 1, 2, 3"
@@exit 0
@@qemu 7.2
@@result {"machine":"riscv64","kernel":"6.12","postgresql":"17.11","pause_p50":12.4,"pause_max":99.6}
`

const header = begin + "\n| machine | kernel | PostgreSQL |"

func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte("before\n"+begin+"\nold\n"+end+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, file, results, 21)
	holds(t, file, "before\n"+header, "\n| s390x | 6.1 | 15.18 | 12, 8 | 400 | 9000 | 5 | 6 | 7 | 8 |",
		"| 0, 1, 2, 3 | 21 November 2026, qemu 7.2 |\n| riscv64 | 6.12 | 17.11 |",
		" 12, 100 |  | 21 November 2026, qemu 7.2 |\n"+end+"\nafter\n")
	if text := text(t, file); strings.Contains(text, "old") || strings.Count(text, "\n") != 8 {
		t.Errorf("the old table is still there:\n%s", text)
	}
	// Two servers of another machine, and a repeated machine: the row of the third machine stays.
	put(t, file, `@@qemu 8.0
@@result {"machine":"aarch64","kernel":"6.1","postgresql":"15.18"}
@@result {"machine":"aarch64","kernel":"6.1","postgresql":"18.4 (npm)"}
@@qemu 8.0
@@result {"machine":"riscv64","kernel":"6.13","postgresql":"18.1"}
`, 22)
	holds(t, file, "\n| aarch64 | 6.1 | 15.18 |", "\n| aarch64 | 6.1 | 18.4 (npm) |",
		"| 22 November 2026, qemu 8.0 |\n| s390x | 6.1 | 15.18 |",
		"| 21 November 2026, qemu 7.2 |\n| riscv64 | 6.13 | 18.1 |")
	if text := text(t, file); strings.Contains(text, "6.12") || strings.Count(text, "\n") != 10 {
		t.Errorf("the old row is still there:\n%s", text)
	}
}

func TestNoTable(t *testing.T) {
	for _, bad := range []string{"@@qemu 7.2\n", "@@result {\n", `@@result {"machine":"vax"}` + "\n"} {
		if err := run(strings.NewReader(bad), nil, time.Now()); err == nil {
			t.Errorf("a table of %q", bad)
		}
	}
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte(begin+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(strings.NewReader(results), []string{file}, time.Now()); err == nil {
		t.Error("a table without an end was replaced")
	}
}

// put runs the command on a day of November 2026.
func put(t *testing.T, file, results string, day int) {
	t.Helper()
	now := time.Date(2026, 11, day, 23, 0, 0, 0, time.UTC)
	if err := run(strings.NewReader(results), []string{file}, now); err != nil {
		t.Fatal(err)
	}
}

// holds looks for parts of a file.
func holds(t *testing.T, file string, parts ...string) {
	t.Helper()
	for _, want := range parts {
		if text := text(t, file); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func text(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestInstructionTables: the figures of instructions replace the old ones, and stay if a run has none.
func TestInstructionTables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	empty := begin + "\n" + end + "\n" + beginInstructions + "\nold\n" + endInstructions + "\nafter\n"
	if err := os.WriteFile(file, []byte(empty), 0o600); err != nil {
		t.Fatal(err)
	}
	const counts = `@@instructions {"kernel":"6.1.0","postgresql":"15.20","transactions":{"simple":{"off":100000,` +
		`"fentry":100500,"fentry, by query":100750,"tracepoints":103000,"tracepoints, by query":103500}},` +
		`"calls":{"off":{"getppid":300.4},"fentry":{"getppid":300.4},"tracepoints":{"getppid":700}}}` + "\n"
	put(t, file, results+counts, 21)
	want := []string{
		"\nLinux 6.1.0, PostgreSQL 15.20, 21 November 2026, qemu 7.2.\n",
		"\n| pgbench select-only, simple | 100000 | +0.50 % | +0.75 % | +3.00 % | +3.50 % |\n",
		"\n| getppid | 300 | 300 | 700 |\n" + endInstructions + "\nafter\n",
	}
	holds(t, file, want...)
	put(t, file, results, 22)
	holds(t, file, want...)
	if strings.Contains(text(t, file), "old") {
		t.Errorf("the old text is still there:\n%s", text(t, file))
	}
}
