package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"pg_stat_backtrace/unwind/selfnames"
)

// TestConfirm uses another version in which a function reports no more, mentions another one, and is beside a new one.
func TestConfirm(t *testing.T) {
	t.Parallel()
	file := func(fns ...selfnames.SourceFunction) *selfnames.Source {
		return &selfnames.Source{Version: "1.0", Files: []selfnames.SourceFile{{Path: "backend/a.c", Functions: fns}}}
	}
	other := filepath.Join(t.TempDir(), "other.table")
	packed, err := file(
		selfnames.SourceFunction{Name: "added", Static: true, Reports: true, MayReport: true, Mentions: []int{1}},
		selfnames.SourceFunction{Name: "changed", Static: true, MayReport: true, Mentions: []int{2}, Points: []int{0}},
		selfnames.SourceFunction{Name: "same", Static: true, Reports: true, MayReport: true, Taken: true},
	).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	s := file(
		selfnames.SourceFunction{Name: "same", Static: true, Reports: true, MayReport: true, Taken: true},
		selfnames.SourceFunction{Name: "changed", Static: true, Reports: true, MayReport: true, Taken: true},
		selfnames.SourceFunction{Name: "only", Static: true, Reports: true, MayReport: true, Taken: true},
	)
	if err := confirm(s, []string{other}); err != nil {
		t.Fatal(err)
	}
	want := file(
		selfnames.SourceFunction{Name: "same", Static: true, Reports: true, MayReport: true, Taken: true},
		selfnames.SourceFunction{Name: "changed", Static: true, MayReport: true, Mentions: []int{0}, Points: []int{3}},
		selfnames.SourceFunction{Name: "only", Static: true, MayReport: true},
		selfnames.SourceFunction{Name: "added", Static: true, MayReport: true, Mentions: []int{1}},
	)
	if !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, want %+v", s, want)
	}
}
