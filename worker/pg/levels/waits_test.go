package levels_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/levels"
)

// TestWaitEventsOfServers asks each server's own functions for the name of every wait event, loaded into the program
// before its main function, and compares with the tables.
func TestWaitEventsOfServers(t *testing.T) {
	library := filepath.Join(t.TempDir(), "waits.so")
	out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-Wall", "-o", library,
		"testdata/waits.c", "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		names, newerNames := 0, 0
		major := pgtest.Major(t, binDir)
		events, err := levels.WaitEvents(major)
		if err != nil {
			t.Fatal(err)
		}
		postgres := exec.CommandContext(t.Context(), filepath.Join(binDir, "postgres"))
		postgres.Env = append(os.Environ(), "LD_PRELOAD="+library)
		out, err := postgres.Output()
		if err != nil {
			t.Fatalf("postgres: %v", err)
		}
		for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
			f := strings.Split(lines.Text(), "\t")
			class, id := number(t, f[0]), number(t, f[1])
			want := f[3]
			switch want {
			case "unknown wait event", "???", "extension", "-": // the server's words for a number without a name
				want = ""
			}
			if want != "" {
				names++
			}
			got := events[class<<24|id]
			// A minor version may have more events at the end of a class than an older one.
			newer := want == "" && id > 0 && got != ""
			if newer {
				newerNames++
			}
			if got != want && !newer || levels.WaitClass(major, class) != f[2] {
				t.Errorf("class %d event %d: %s %q, but the server says %s %q", class, id, levels.WaitClass(major, class), got,
					f[2], want)
			}
		}
		t.Logf("%d names, %d in the table", names, len(events))
		if names+newerNames != len(events) || newerNames > 5 || names < 200 {
			t.Errorf("the table has names that the server has not")
		}
	})
}

func number(t *testing.T, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}
