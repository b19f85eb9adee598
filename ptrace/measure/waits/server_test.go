package waits

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// TestAliveWithoutDescriptors: if this process can open no file, it does not know that the server has ended. This process is the
// postmaster.
func TestAliveWithoutDescriptors(t *testing.T) {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	base := uint64(uintptr(unsafe.Pointer(&page[0])))
	binary.NativeEndian.PutUint64(page, base+8)     // ProcGlobal
	binary.NativeEndian.PutUint64(page[8:], base+1) // PROC_HDR.allProcs
	page[16] = 1                                    // PROC_HDR.allProcCount
	p := &procs{Server: &Server{Postmaster: os.Getpid(), ProcGlobal: base, Layout: Layout{ProcCount: 8}}}
	stat, err := process.ReadStat(p.Postmaster)
	if err == nil {
		p.start = stat.StartTime
		p.first, p.count, err = p.read()
	}
	if err == nil {
		p.memory, err = p.readMemory()
	}
	if err == nil {
		err = p.alive()
	}
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, opened := os.Open("/proc/self/stat")
	got := p.alive()
	_, unread := p.readMemory()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if got != nil || !errors.Is(opened, unix.EMFILE) || errors.Is(unread, ErrServerGone) {
		t.Errorf("alive: %v, mappings: %v, a file: %v", got, unread, opened)
	}
	p.start++ // another process has the id
	if err := p.alive(); !errors.Is(err, ErrServerGone) {
		t.Errorf("of another process: %v", err)
	}
}
