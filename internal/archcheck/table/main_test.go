package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const results = `@@qemu 7.2
@@result {"machine":"s390x","kernel":"6.1","postgresql":"15.18","processes":12,"kinds":8,"captures":400,"frames":9000}
@@yama "0, 1, 2, 3"
@@exit 0
@@qemu 7.2
@@result {"machine":"riscv64","kernel":"6.12","postgresql":"17.11","pause_p50":12.4,"pause_max":99.6}
`

func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte("before\n"+begin+"\nold\n"+end+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	day := time.Date(2026, 11, 21, 23, 0, 0, 0, time.UTC)
	if err := run(strings.NewReader(results), []string{file}, day); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{
		"before\n" + begin + "\nOf 21 November 2026, qemu 7.2:\n", "\n| s390x | 6.1 | 15.18 | 12, 8 | 400 | 9000 |",
		"| 0, 1, 2, 3 |\n", "\n| riscv64 | 6.12 | 17.11 |", " 12, 100 |  |\n" + end + "\nafter\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "old") {
		t.Error("the old table is still there")
	}
	if err := run(strings.NewReader("@@qemu 7.2\n"), nil, day); err == nil {
		t.Error("a table of nothing")
	}
}
