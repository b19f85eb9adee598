package waits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
)

// watchpoint follows each change of the wait event of a process, by a debug register of the processor. The kernel
// reports each store with the registers of the process, and the value is found by decoding the instruction.
type watchpoint struct {
	procs *procs
	info  Info
	pid   int
	start uint64 // of the process
	fd    int
	ring  []byte
	stop  chan struct{}
	done  sync.WaitGroup

	mu        sync.Mutex
	since     time.Time
	events    table
	resets    uint64
	waiting   uint32
	began     uint64
	lost      uint64 // changes that found no room in the ring
	undecoded uint64 // changes to a value that is not known
	code      map[uint64][]byte
}

// The registers that the kernel reports, by their numbers in perf_event_open(2): the general ones and the next
// instruction.
const (
	perfRegisters   = 0x0000_0000_00ff_01ff
	breakpointWrite = 2 // HW_BREAKPOINT_W of linux/hw_breakpoint.h
	ringPages       = 256
)

// openWatchpoint starts to follow one process.
func openWatchpoint(p *procs, info Info, pid int) (Provider, error) {
	slot, ok := p.slotOf(pid)
	stat, err := procfs.ReadStat(pid)
	if !ok || err != nil {
		return nil, impossiblef("process %d is not a process of this server", pid)
	}
	w := &watchpoint{
		procs: p, info: info, pid: pid, start: stat.StartTime, stop: make(chan struct{}), since: time.Now(),
		events: make(table), code: make(map[uint64][]byte),
	}
	w.info.Counts = true
	if err := tryWatchpoint(); err != nil {
		return nil, err
	}
	w.fd, err = newWatchpoint(pid, p.first+uint64(slot*p.Layout.ProcSize+p.Layout.WaitEvent))
	if err != nil {
		return nil, err
	}
	w.ring, err = unix.Mmap(w.fd, 0, (ringPages+1)*unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(w.fd)
		return nil, impossiblef("map the watchpoint's records: %w", err)
	}
	w.waiting, w.began = p.eventAt(slot), monotonic() // records may already exist, see sample
	w.done.Go(w.run)
	return w, nil
}

// newWatchpoint has the kernel record each store of four bytes to an address of a process.
func newWatchpoint(pid int, address uint64) (int, error) {
	attributes := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_BREAKPOINT, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bp_type: breakpointWrite,
		Ext1: address, Ext2: 4, Sample: 1,
		Sample_type:      unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_REGS_USER,
		Sample_regs_user: perfRegisters, Clockid: unix.CLOCK_MONOTONIC,
		Bits: unix.PerfBitExcludeKernel | unix.PerfBitUseClockID | unix.PerfBitWatermark, Wakeup: 1 << 30,
	}
	fd, err := unix.PerfEventOpen(&attributes, pid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return -1, fmt.Errorf("the kernel refuses a watchpoint: %w", err)
	case err != nil:
		return -1, impossiblef("watchpoint: %w", err)
	}
	return fd, nil
}

// tryWatchpoint returns why this process can set no watchpoint, by an attempt on itself. Some virtual machines accept a
// watchpoint and never report a store.
func tryWatchpoint() error {
	runtime.LockOSThread() // the watchpoint is for this thread
	defer runtime.UnlockOSThread()
	watched := make([]atomic.Uint32, unix.Getpagesize()) // too long for the stack, which can move
	fd, err := newWatchpoint(0, uint64(uintptr(unsafe.Pointer(&watched[0]))))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	watched[0].Store(1)
	var count [8]byte
	if _, err := unix.Read(fd, count[:]); err != nil {
		return impossiblef("watchpoint: %w", err)
	}
	if binary.NativeEndian.Uint64(count[:]) == 0 {
		return impossiblef("the kernel accepts a watchpoint, and the processor reports no store")
	}
	return nil
}

func (w *watchpoint) run() {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-ticker.C:
			w.mu.Lock()
			w.drain()
			w.mu.Unlock()
		}
	}
}

// drain reads the records that have come.
func (w *watchpoint) drain() {
	page := (*unix.PerfEventMmapPage)(unsafe.Pointer(unsafe.SliceData(w.ring)))
	data := w.ring[unix.Getpagesize():]
	head, tail := atomic.LoadUint64(&page.Data_head), page.Data_tail
	for tail < head {
		var header [8]byte
		copyRing(header[:], data, tail)
		size := uint64(binary.NativeEndian.Uint16(header[6:]))
		if size < 8 || tail+size > head {
			break
		}
		body := make([]byte, size-8)
		copyRing(body, data, tail+8)
		tail += size
		switch binary.NativeEndian.Uint32(header[:]) {
		case unix.PERF_RECORD_SAMPLE:
			w.sample(body)
		case unix.PERF_RECORD_LOST:
			if len(body) >= 16 {
				w.lost += binary.NativeEndian.Uint64(body[8:])
				w.waiting = 0 // the state is unknown until the next change
			}
		}
	}
	atomic.StoreUint64(&page.Data_tail, tail)
}

func copyRing(into, ring []byte, at uint64) {
	start := int(at % uint64(len(ring)))
	n := copy(into, ring[start:])
	copy(into[n:], ring)
}

// sample accounts for one change of the event. If the change was before the process was first examined, it only gives
// the event.
func (w *watchpoint) sample(body []byte) {
	const registers = 17
	if len(body) < 8*(3+registers) {
		w.undecoded++
		return
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(body[8*i:]) }
	now := word(1)
	if w.waiting != 0 && now >= w.began {
		w.events.at(w.waiting).addWait(time.Duration(now - w.began))
	}
	var values [registers]uint64
	for i := range values {
		values[i] = word(3 + i)
	}
	w.began = max(w.began, now)
	var ok bool
	if w.waiting, ok = stored(w.codeBefore(word(0)), &values); !ok {
		w.undecoded++
	}
}

// codeBefore reads the end of the instruction that was executed before an address.
func (w *watchpoint) codeBefore(address uint64) []byte {
	code, ok := w.code[address]
	if !ok {
		code = make([]byte, 8)
		if readFull(process.NewMemory(w.pid), address-8, code) != nil {
			return nil
		}
		if len(w.code) < 1000 {
			w.code[address] = code
		}
	}
	return code
}

// stored returns the value of a 32-bit store that ends the code: of a constant (c7 /0) or of a register (89 /r), to the
// address in a register.
func stored(code []byte, registers *[17]uint64) (value uint32, ok bool) {
	// x86's numbers of registers, as positions in the kernel's report: ax, cx, dx, bx, sp, bp, si, di, 8 to 15.
	positions := [16]int{0, 2, 3, 1, 7, 6, 4, 5, 9, 10, 11, 12, 13, 14, 15, 16}
	if len(code) < 8 {
		return 0, false
	}
	end := len(code)
	simple := func(modrm byte) bool { return modrm>>6 == 0 && modrm&7 != 4 && modrm&7 != 5 }
	if modrm := code[end-5]; code[end-6] == 0xc7 && simple(modrm) && modrm>>3&7 == 0 {
		return binary.LittleEndian.Uint32(code[end-4:]), true
	}
	if modrm := code[end-1]; code[end-2] == 0x89 && simple(modrm) {
		number := int(modrm >> 3 & 7)
		if rex := code[end-3]; rex&0xf4 == 0x44 { // REX with the bit that extends the register's number
			number += 8
		}
		return uint32(registers[positions[number]]), true
	}
	return 0, false
}

func (w *watchpoint) Info() Info { return w.info }

func (w *watchpoint) Check() error { return w.procs.alive() }

func (w *watchpoint) Snapshot() (*Snapshot, error) {
	if err := w.procs.alive(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain()
	stat, err := procfs.ReadStat(w.pid)
	ended := err != nil || stat.StartTime != w.start
	events := make(table)
	events.addAll(w.events.list())
	p := Process{PID: w.pid, Resets: w.resets, Ended: ended}
	if w.waiting != 0 && !ended {
		p.wait(events, w.waiting, w.began)
	}
	p.Events = events.list()
	return &Snapshot{
		At: time.Now(), Since: w.since, Lost: Lost{Missed: w.lost + w.undecoded}, Processes: []Process{p},
	}, nil
}

func (w *watchpoint) Queries() ([]QueryFigures, error) { return nil, nil }

func (w *watchpoint) Reset(pid int) bool {
	if pid != w.pid {
		return false
	}
	return w.ResetAll() == nil
}

func (w *watchpoint) ResetAll() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := monotonic() // before drain: the next records may be of changes after it
	w.drain()
	w.events, w.lost, w.undecoded = make(table), 0, 0
	w.resets++
	w.since, w.began = time.Now(), max(w.began, now)
	return nil
}

func (w *watchpoint) Cost() (Cost, error) { return Cost{}, nil }

func (w *watchpoint) Close() {
	close(w.stop)
	w.done.Wait()
	_ = unix.Munmap(w.ring)
	_ = unix.Close(w.fd)
}
