package selfnames_test

import (
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/selfnames"
)

// TestBuiltinTables keeps the tables that the documentation promises, and their size.
func TestBuiltinTables(t *testing.T) {
	t.Parallel()
	const first, last, most = 14, 18, 1_000_000
	size := 0
	for major := first; major <= last; major++ {
		table := selfnames.Builtin().Read(major)
		size += len(table)
		source, err := selfnames.Unpack(table)
		if err != nil {
			t.Errorf("%d: %v", major, err)
			continue
		}
		if got, _, _ := strings.Cut(source.Version, "."); got != strconv.Itoa(major) {
			t.Errorf("the table of %d is of %s", major, source.Version)
		}
	}
	if size > most {
		t.Errorf("all tables have %d bytes, more than %d", size, most)
	}
}
