package naming

import (
	"testing"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// TestLookupsBounded checks that only a bounded number of lookups waits for a disk that does not respond.
func TestLookupsBounded(t *testing.T) {
	t.Parallel()
	s := NewCache(symbolize.NewCache(nil, &symbolize.Sources{}))
	for i := range maxLookups {
		s.lookups[mappingKey{process: ProcessKey{PID: i}}] = &symbolize.Lazy[symbolize.Placed]{}
	}
	sp := s.Open(1, 1, []process.Mapping{{Perms: process.Exec, Inode: 1, Path: "/lib/slow.so"}})
	if f := sp.lookUpImage(0); f.Module != nil || sp.Unread != "slow.so" || len(s.lookups) != maxLookups {
		t.Errorf("%v, %q is unread, %d lookups", f.Module, sp.Unread, len(s.lookups))
	}
}
