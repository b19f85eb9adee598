package capture

import (
	"testing"

	"pg_stat_backtrace/ptrace/procfs"
)

// TestSoughtBounded: where nothing that is looked for is found, as on a disk that does not answer, no more than so many
// goroutines wait for it.
func TestSoughtBounded(t *testing.T) {
	t.Parallel()
	s := newSpaces(newImages(nil, &shared{}))
	for i := range maxSought {
		s.sought[mappingKey{process: processKey{pid: i}}] = &lazy[found]{}
	}
	sp := s.open(1, 1, []procfs.Mapping{{Perms: procfs.Exec, Inode: 1, Path: "/lib/slow.so"}})
	if f := sp.seek(0); f.module != nil || sp.unread != "slow.so" || len(s.sought) != maxSought {
		t.Errorf("%v, %q is unread, %d are sought", f.module, sp.unread, len(s.sought))
	}
}
