package recorder

import (
	"testing"

	"pg_stat_backtrace/worker/history/rules"
)

// TestArchiving has titles of archivers, and titles with a cluster_name that looks like one.
func TestArchiving(t *testing.T) {
	t.Parallel()
	const file = "000000010000000000000001"
	for title, want := range map[string]rules.Archiving{
		"postgres: archiver archiving " + file:                     {PID: 7, File: file},
		"postgres: 14/main: archiver failed on " + file:            {PID: 7, File: file},
		"postgres: archiver failed on 00000002.history":            {PID: 7, File: "00000002.history"},
		"postgres: archiver last was " + file + ".00000028.backup": {PID: 7, Done: true},
		"postgres: archiver":                                       {},
		"postgres: archiver failed on archiver":                    {},
		"postgres: last was " + file + ": archiver":                {},
		"archiver": {},
		"":         {},
	} {
		if got := archiving(7, title); got != want {
			t.Errorf("%q: %+v, want %+v", title, got, want)
		}
	}
}
