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
	// Offset is the place in the file. The stack pointer and the registers of the arguments are there as at the entry.
	Offset uint64
	// Stepped means that the kernel cannot emulate the instruction there, and has the process execute it in a single step,
	// which costs ten times as much.
	Stepped bool
}

// Target is a process and its allocator.
type Target struct {
	Process process.Target
	// File is the open file of the image that has the functions. The caller closes it when Open has returned.
	File *os.File
	// Functions are those to probe.
	Functions []Function
	// Library are the addresses of the C library's code: its own calls of mmap and munmap do not count. None: all count.
	Library Range
	// HasHeaders means that the word before a block has its size, in glibc's manner.
	HasHeaders bool
}

// verify looks for the breakpoint of the first probed function in the process's memory. The kernel reports no error
// for a file that the process has not mapped.
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

// codeRanges returns where a process has code.
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

// codePages returns the kernel's number of pages with code of a process (exec_vm of struct mm_struct), which status
// shows in two parts; 0 if it cannot be read.
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
