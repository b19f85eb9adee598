package probe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

//go:noescape
func passes(n uint64)

func addressOfPasses() unsafe.Pointer

// loopCode is push %rcx; pop %rcx; dec %rcx. The kernel emulates the first instruction and single-steps the last one.
var loopCode = []byte{0x51, 0x59, 0x48, 0xff, 0xc9} //nolint:gochecknoglobals // a constant

// calibrating serializes calls of Calibrate, because a second probe of the loop would double the cost of a hit.
var calibrating sync.Mutex //nolint:gochecknoglobals // there is one loop

// Calibrate measures the cost of a hit on this host with probes of a loop in this program. It takes some milliseconds.
// Errors are those of Load and Programs.Attach.
func Calibrate() (c Cost, err error) {
	calibrating.Lock()
	defer calibrating.Unlock()
	const (
		emulated = 2000 // passes of the loop
		stepped  = 300
	)
	offset, err := loopOffset()
	if err != nil {
		return c, err
	}
	p, err := Load(Config{Probes: []Probe{{}}, Processes: 1}) // only once: the kernel takes long to verify a program
	if err != nil {
		return c, err
	}
	defer p.Close()
	if c.Emulated, err = p.measure(offset, emulated); err != nil {
		return c, err
	}
	c.Stepped, err = p.measure(offset+2, stepped)
	return c, err
}

// loopOffset returns the offset of the loop in this program's file. It searches the file and not the memory, because another
// process of this program may have a breakpoint there while it calibrates.
func loopOffset() (uint64, error) {
	address := uint64(uintptr(addressOfPasses()))
	maps, err := process.Maps(os.Getpid())
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(maps, func(m process.Mapping) bool { return address >= m.Start && address < m.End })
	if i < 0 {
		return 0, errors.New("the code of the loop that is measured is not mapped")
	}
	offset := address - maps[i].Start + maps[i].Offset
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("measure the cost of a probe: %w", err)
	}
	defer file.Close()
	code := make([]byte, 64)
	if _, err = file.ReadAt(code, int64(offset)); err != nil { // the file has no breakpoints
		return 0, fmt.Errorf("measure the cost of a probe: %w", err)
	}
	at := bytes.Index(code, loopCode)
	if at < 0 {
		return 0, errors.New("the loop that is measured was not found")
	}
	return offset + uint64(at), nil
}

// measure returns the processor time of a hit at an offset in this program's file, as the mean of n hits.
func (p *Programs) measure(offset, n uint64) (time.Duration, error) {
	pid := os.Getpid()
	if p.Uprobes.MainThreadOnly {
		pid = 0 // probe all processes: this thread may not be the main thread
	}
	link, err := p.Attach("/proc/self/exe", pid, []Site{{Offset: offset}})
	if err != nil {
		return 0, fmt.Errorf("measure the cost of a probe: %w", err)
	}
	defer link.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	passes(n / 10) // the first ones take longer
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	passes(n)
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return time.Duration(after.Nano()-before.Nano()) / time.Duration(n), nil
}
