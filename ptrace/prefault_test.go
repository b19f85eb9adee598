package ptrace

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestSwappedStack checks that swapped pages of a process's stack are back in memory before the process is attached.
// The test must be enabled explicitly, because it makes this machine swap.
func TestSwappedStack(t *testing.T) {
	if os.Getenv("PGSB_TEST_SWAP") == "" {
		t.Skip("PGSB_TEST_SWAP is not set: it adds swap space to this machine, and takes it away again")
	}
	addSwap(t)
	c := startTarget(t, "sleep")
	untilState(t, c.pid, 'S')
	call, err := process.ReadSyscall(c.pid, c.pid)
	if err != nil {
		t.Fatal(err)
	}
	start, end := mainStack(t, c.pid)
	for range 10 {
		until(t, "a page of the stack is swapped", func() bool { // the kernel does not swap out recently used pages
			pageOut(t, c.pid, start, end)
			return swappedPages(t, c.pid, call.SP, end) > 0
		})
		left := -1
		snap, err := captureWith(t.Context(), anyTarget(c.pid), snapshot.Options{Deadline: patience}, func(at step) {
			if at == stepSeized {
				left = swappedPages(t, c.pid, call.SP, end)
			}
		})
		if err != nil || left != 0 {
			t.Fatalf("%d pages are not in memory when it is stopped, %v", left, err)
		}
		if stack := &snap.Threads[0].Stack; stack.Start+uint64(len(stack.Data)) != end {
			t.Errorf("the stack ends at %#x, not %#x", stack.Start+uint64(len(stack.Data)), end)
		}
		snap.Release()
	}
}

// TestSwappedExpectation checks that a wrong expected target of a variable is not read from swap space.
func TestSwappedExpectation(t *testing.T) {
	if os.Getenv("PGSB_TEST_SWAP") == "" {
		t.Skip("PGSB_TEST_SWAP is not set: it adds swap space to this machine, and takes it away again")
	}
	addSwap(t)
	c := startTarget(t, "listed", "6")
	trail := trailOf(t, c)
	untilState(t, c.pid, 'S')
	plain := mustCapture(t, c.pid, snapshot.Options{})
	i := slices.IndexFunc(plain.Maps, func(m process.Mapping) bool { return m.Path == "[heap]" })
	if i < 0 {
		t.Fatal("no heap")
	}
	heap := &plain.Maps[i]
	trail.Head = 0 // its texts are in the heap
	trail.Variables = trail.Variables[:1]
	trail.Variables[0].Expected = heap.Start
	first := heap.Start + uint64(os.Getpagesize())
	until(t, "the first page of the heap is swapped", func() bool {
		pageOut(t, c.pid, heap.Start, heap.End)
		return swappedPages(t, c.pid, heap.Start, first) > 0
	})
	mustCapture(t, c.pid, snapshot.Options{ExtraReads: trail, MapsSnapshot: plain.MapsSnapshot})
	if swappedPages(t, c.pid, heap.Start, first) == 0 {
		t.Error("it has been read")
	}
}

// addSwap gives the machine swap space as long as the test lasts.
func addSwap(t *testing.T) {
	t.Helper()
	const size, page = 32 << 20, 4096
	file := filepath.Join(t.TempDir(), "swap")
	space := make([]byte, size)
	// mkswap(8): one page of version 1, with the last page's number and the signature.
	binary.NativeEndian.PutUint32(space[1024:], 1)
	binary.NativeEndian.PutUint32(space[1028:], size/page-1)
	copy(space[page-10:], "SWAPSPACE2")
	if err := os.WriteFile(file, space, 0o600); err != nil {
		t.Fatal(err)
	}
	name, err := unix.BytePtrFromString(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
		t.Skipf("no swap space may be added: %v", errno)
	}
	t.Cleanup(func() {
		if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
			t.Errorf("%s is still swap space: %v", file, errno)
		}
	})
}

func mainStack(t *testing.T, pid int) (start, end uint64) {
	t.Helper()
	maps, err := process.Maps(pid)
	i := slices.IndexFunc(maps, func(m process.Mapping) bool { return m.Path == snapshot.StackPath })
	if err != nil || i < 0 {
		t.Fatal("no stack", err)
	}
	return maps[i].Start, maps[i].End
}

// pageOut makes the kernel swap out memory of a process.
func pageOut(t *testing.T, pid int, start, end uint64) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	remote := iovec{uintptr(start), uintptr(end - start)}
	_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&remote)), 1,
		unix.MADV_PAGEOUT, 0, 0)
	if errno != 0 {
		t.Skipf("no memory can be swapped on purpose: %v", errno)
	}
}

// swappedPages counts the pages of a process that are in swap space (proc_pid_pagemap(5)).
func swappedPages(t *testing.T, pid int, start, end uint64) (n int) {
	t.Helper()
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "pagemap"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const swapped = 1 << 62
	page := uint64(os.Getpagesize())
	p := make([]byte, (end-start/page*page)/page*8)
	if _, err := f.ReadAt(p, int64(start/page*8)); err != nil {
		t.Fatal(err)
	}
	for ; len(p) >= 8; p = p[8:] {
		if binary.NativeEndian.Uint64(p)&swapped != 0 {
			n++
		}
	}
	return n
}
