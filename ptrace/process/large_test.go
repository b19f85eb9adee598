package process_test

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"pg_stat_backtrace/ptrace/process"
)

// TestMemoryLarge reads more than one part of our own memory, whole and beyond its end: a large read has a timeout for each
// part, since all of it can take longer than one timeout.
func TestMemoryLarge(t *testing.T) {
	t.Parallel()
	want := make([]byte, 3<<20+100)
	for i := range want {
		want[i] = byte(i / 1000)
	}
	got := make([]byte, len(want))
	m := process.NewMemory(os.Getpid())
	n, err := m.Read(uint64(uintptr(unsafe.Pointer(&want[0]))), got)
	if err != nil || n != len(want) || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes, %v", n, len(want), err)
	}
	if n, err := m.Read(1, got); err == nil || n != 0 {
		t.Errorf("at address 1: %d bytes, %v", n, err)
	}
	if n, err := m.Read(1, nil); err != nil || n != 0 {
		t.Errorf("nothing: %d bytes, %v", n, err)
	}
}
