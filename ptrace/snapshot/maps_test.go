package snapshot

import (
	"slices"
	"testing"

	"pg_stat_backtrace/ptrace/process/procfs"
)

func TestMapsBetween(t *testing.T) {
	code := func(start uint64, inode uint64) procfs.Mapping {
		return procfs.Mapping{Start: start, End: start + 0x1000, Perms: procfs.Read | procfs.Exec, Inode: inode}
	}
	data := procfs.Mapping{Start: 0x9000, End: 0xa000, Perms: procfs.Read}
	grown := data
	grown.Start = 0x8000
	before := []procfs.Mapping{code(0x1000, 1), code(0x2000, 2), code(0x4000, 4), data}
	after := []procfs.Mapping{code(0x1000, 1), code(0x2000, 3), code(0x3000, 5), grown}
	want := []procfs.Mapping{code(0x1000, 1), code(0x3000, 5), grown}
	if got := MapsBetween(before, after); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
