package probe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process/procfs"
)

//go:noescape
func passes(n uint64)

func addressOfPasses() unsafe.Pointer

// loopCode is push %rcx; pop %rcx; dec %rcx. The kernel emulates the first instruction and single-steps the last one.
var loopCode = []byte{0x51, 0x59, 0x48, 0xff, 0xc9} //nolint:gochecknoglobals // a constant

// Calibrate measures what a hit costs on this host, by probes of a loop in this program. It takes some milliseconds.
// Errors are those of Open.
func Calibrate() (c Cost, err error) {
	const (
		emulated = 2000 // passes
		stepped  = 300
	)
	address := uint64(uintptr(addressOfPasses()))
	code := unsafe.Slice((*byte)(addressOfPasses()), 64)
	at := bytes.Index(code, loopCode)
	if at < 0 {
		return c, errors.New("the loop that is measured was not found")
	}
	maps, err := procfs.Maps(os.Getpid())
	if err != nil {
		return c, err
	}
	var offset uint64
	for i := range maps {
		if m := &maps[i]; address >= m.Start && address < m.End {
			offset = address - m.Start + m.Offset + uint64(at)
		}
	}
	if c.Emulated, err = measure(offset, emulated); err != nil {
		return c, err
	}
	c.Stepped, err = measure(offset+2, stepped)
	return c, err
}

// measure returns the processor time of a hit at a place of this program's file.
func measure(offset, n uint64) (time.Duration, error) {
	p, err := Load(Config{Probes: []Probe{{}}, Processes: 1})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	pid := os.Getpid()
	if p.Uprobes.MainThreadOnly {
		pid = 0 // all processes: this thread may not be the main one
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
