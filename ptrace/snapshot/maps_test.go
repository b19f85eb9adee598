package snapshot

import (
	"slices"
	"testing"

	"pg_stat_backtrace/ptrace/process"
)

func TestMapsBetween(t *testing.T) {
	code := func(start uint64, inode uint64) process.Mapping {
		return process.Mapping{Start: start, End: start + 0x1000, Perms: process.Read | process.Exec, Inode: inode}
	}
	data := process.Mapping{Start: 0x9000, End: 0xa000, Perms: process.Read}
	grown := data
	grown.Start = 0x8000
	before := []process.Mapping{code(0x1000, 1), code(0x2000, 2), code(0x4000, 4), data}
	after := []process.Mapping{code(0x1000, 1), code(0x2000, 3), code(0x3000, 5), grown}
	want := []process.Mapping{code(0x1000, 1), code(0x3000, 5), grown}
	if got := MapsBetween(before, after); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
