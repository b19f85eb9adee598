package procmap

import (
	"testing"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/worker/symbolize"
)

// TestSoughtBounded: where nothing that is looked for is found, as on a disk that does not answer, no more than so many
// goroutines wait for it.
func TestSoughtBounded(t *testing.T) {
	t.Parallel()
	s := NewCache(symbolize.NewCache(nil, &symbolize.Sources{}))
	for i := range maxSought {
		s.sought[mappingKey{process: ProcessKey{PID: i}}] = &symbolize.Lazy[symbolize.Placed]{}
	}
	sp := s.Open(1, 1, []procfs.Mapping{{Perms: procfs.Exec, Inode: 1, Path: "/lib/slow.so"}})
	if f := sp.seek(0); f.Module != nil || sp.Unread != "slow.so" || len(s.sought) != maxSought {
		t.Errorf("%v, %q is unread, %d are sought", f.Module, sp.Unread, len(s.sought))
	}
}
