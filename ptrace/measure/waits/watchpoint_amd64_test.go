package waits

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestWatchpointsReport expects that a watchpoint is possible exactly where the processor reports each of several
// stores.
func TestWatchpointsReport(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	watched := make([]atomic.Uint32, unix.Getpagesize())
	fd, err := newWatchpoint(0, uint64(uintptr(unsafe.Pointer(&watched[0]))))
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	const stores = 5
	for i := range stores {
		watched[0].Store(uint32(i))
	}
	var count [8]byte
	if _, err := unix.Read(fd, count[:]); err != nil {
		t.Fatal(err)
	}
	n, possible := binary.NativeEndian.Uint64(count[:]), tryWatchpoint()
	if (n == stores) != (possible == nil) || possible != nil && !errors.Is(possible, ErrUnsupported) {
		t.Errorf("%d of %d stores were reported, and a watchpoint is said to be possible: %v", n, stores, possible)
	}
}

// TestEarlierChange checks that a change from before the time at which a wait is known to have begun adds no wait. The
// wait would have a negative length.
func TestEarlierChange(t *testing.T) {
	t.Parallel()
	const address, before, after = 0x1000, 5, 7
	w := &watchpoint{
		events: make(table), waiting: before, began: 1000,
		code: map[uint64][]byte{address: {0x90, 0x90, 0xc7, 0x00, after, 0, 0, 0}}, // movl $7, (%rax)
	}
	change := func(at uint64) {
		body := make([]byte, 8*(3+17))
		binary.NativeEndian.PutUint64(body, address)
		binary.NativeEndian.PutUint64(body[8:], at)
		w.sample(body)
	}
	change(900)
	if events := w.events.list(); len(events) != 0 || w.waiting != after || w.began != 1000 {
		t.Errorf("a change before: %+v, event %d since %d", events, w.waiting, w.began)
	}
	change(1500)
	if e := w.events.at(after); e.Calls != 1 || e.Total != 500 || w.began != 1500 {
		t.Errorf("a change after: %+v, since %d", e, w.began)
	}
}

// TestResetDuringChange checks that no wait begins after the next record of the ring.
func TestResetDuringChange(t *testing.T) {
	t.Parallel()
	w := &watchpoint{ring: make([]byte, 2*unix.Getpagesize()), waiting: 5, began: monotonic()}
	before := w.began
	if err := w.ResetAll(); err != nil || w.began < before || w.began > monotonic() {
		t.Errorf("began %d instead of %d, %v", w.began, before, err)
	}
	later := monotonic() + uint64(time.Hour)
	w.began = later // by a record that was read in the reset
	if err := w.ResetAll(); err != nil || w.began != later {
		t.Errorf("began %d instead of %d, %v", w.began, later, err)
	}
}

// TestStored decodes stores as gcc and clang make them, and refuses everything else.
func TestStored(t *testing.T) {
	var registers [17]uint64
	for i := range registers {
		registers[i] = uint64(100 + i)
	}
	for _, c := range []struct {
		text  string
		code  []byte
		value uint32
		ok    bool
	}{
		{"movl $0x1000005, (%rax)", []byte{0x90, 0x90, 0xc7, 0x00, 5, 0, 0, 1}, 0x1000005, true},
		{"movl $0, (%rbx)", []byte{0x90, 0x90, 0xc7, 0x03, 0, 0, 0, 0}, 0, true},
		{"movl $7, (%r12 needs SIB)", []byte{0x90, 0x90, 0xc7, 0x04, 7, 0, 0, 0}, 0, false},
		{"mov %edx, (%rax)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x89, 0x10}, 103, true},
		{"mov %esi, (%rdx)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x89, 0x32}, 104, true},
		{"mov %r12d, (%rax)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x44, 0x89, 0x20}, 113, true},
		{"mov %ebx, (%r14)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x41, 0x89, 0x1e}, 101, true},
		{"mov %edx, 4(%rax)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x89, 0x50, 0x04}, 0, false},
		{"nothing", nil, 0, false},
	} {
		if value, ok := stored(c.code, &registers); value != c.value || ok != c.ok {
			t.Errorf("%s: %#x, %v", c.text, value, ok)
		}
	}
}
