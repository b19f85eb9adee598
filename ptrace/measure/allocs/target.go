package allocs

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// Function is one of an allocator's functions, and where it is probed.
type Function struct {
	// Name is for messages.
	Name string
	Kind Kind
	// Offset is the place of the probe in the file. There, the stack pointer and the argument registers are still as at
	// entry.
	Offset uint64
	// Stepped means that the kernel cannot emulate the probed instruction. The process then executes it in a single
	// step, which takes ten times as long.
	Stepped bool
}

// Target is a process and its allocator.
type Target struct {
	Process process.Target
	// File is the open file of the image that has the functions. The caller closes it when Open has returned.
	File *os.File
	// Functions are the functions to probe.
	Functions []Function
	// Library is the code of the C library. Its own calls of mmap and munmap are not counted. Empty: all are counted.
	Library Range
	// HasHeaders means that the word before each block has the block's size, in glibc's format.
	HasHeaders bool
}

// verify returns ErrUnsupported if the process's memory does not have the breakpoint of the first probed function. The
// kernel itself reports no error for a file that the process has not mapped.
func (t *Target) verify(maps []process.Mapping) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(t.File.Fd()), &st); err != nil {
		return fmt.Errorf("look at %s: %w", t.File.Name(), err)
	}
	f := &t.Functions[0]
	for i := range maps {
		m := &maps[i]
		if m.Inode != st.Ino || m.Perms&process.Exec == 0 || f.Offset < m.Offset || f.Offset-m.Offset >= m.End-m.Start {
			continue
		}
		var code [1]byte
		if _, err := process.ReadMemoryWithTimeout(t.Process.PID, m.Start+f.Offset-m.Offset, code[:]); err != nil {
			return err
		}
		if code[0] == breakpoint {
			return nil
		}
	}
	return fmt.Errorf("%w: the probe of %s is not in the memory of process %d", ErrUnsupported, f.Name, t.Process.PID)
}

// breakpoint is the instruction that the kernel writes at a probe on x86_64.
const breakpoint = 0xcc

// codeRanges returns the executable mappings, in address order, adjacent ones joined.
func codeRanges(maps []process.Mapping) (ranges []Range) {
	for i := range maps {
		m := &maps[i]
		if m.Perms&process.Exec == 0 || m.Path == "[vsyscall]" {
			continue
		}
		if last := len(ranges) - 1; last >= 0 && ranges[last].End == m.Start {
			ranges[last].End = m.End
			continue
		}
		ranges = append(ranges, Range{Start: m.Start, End: m.End})
	}
	return ranges
}

// codePages returns how many pages with code a process has (exec_vm of struct mm_struct), from VmExe and VmLib in
// /proc/PID/status; 0: the file cannot be read.
func codePages(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	total := uint64(0)
	for line := range strings.Lines(string(text)) {
		var kib uint64
		name, value, _ := strings.Cut(line, ":")
		if name != "VmExe" && name != "VmLib" {
			continue
		}
		if _, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", &kib); err != nil {
			return 0
		}
		total += kib
	}
	return total << 10 / uint64(os.Getpagesize())
}
