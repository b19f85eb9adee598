package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

var errStatm = errors.New("/proc/PID/statm has another form")

// ReadPrivate returns the size, in bytes, of a process's resident anonymous memory: without shared memory, mapped files and
// swapped memory. It takes a few microseconds, whatever the size is.
func ReadPrivate(pid int) (uint64, error) {
	text, err := readFile(procPath(pid, "statm"))
	if err != nil {
		return 0, err
	}
	const resident, shared = 1, 2
	fields := strings.Fields(text)
	if len(fields) <= shared {
		return 0, errStatm
	}
	const bits = 48 // of a number of pages
	all, err1 := strconv.ParseUint(fields[resident], 10, bits)
	others, err2 := strconv.ParseUint(fields[shared], 10, bits)
	if err := errors.Join(err1, err2); err != nil {
		return 0, errStatm
	}
	return (all - min(all, others)) * uint64(os.Getpagesize()), nil
}

// MemoryLimit returns how much memory a process can use, in bytes: the memory of the host, or the limit of its control group or of a group
// above, if that is lower. It returns 0 if that is unknown. Limits above the root of a container cannot be seen.
func MemoryLimit(pid int) uint64 {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	groups, err1 := readFile(procPath(pid, "cgroup"))
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err1 != nil || err2 != nil {
		groups, mounts = "", nil
	}
	return memoryLimit(string(info), groups, string(mounts), func(name string) string {
		text, _ := os.ReadFile(name) // the root group has no such file
		return string(text)
	})
}

// memoryLimit is MemoryLimit for the texts of /proc/meminfo, /proc/PID/cgroup and /proc/self/mountinfo; read reads other
// files.
func memoryLimit(info, groups, mounts string, read func(name string) string) (least uint64) {
	const bits = 54 // of a number of units
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			least, _ = parseKilobytes(strings.TrimSpace(value))
		}
	}
	eachGroup(groups, mounts, controllerMemory, func(dir string, second bool) {
		name := "/memory.limit_in_bytes"
		if second {
			name = "/memory.max"
		}
		limit, err := strconv.ParseUint(strings.TrimSpace(read(dir+name)), 10, bits) // "max", or a larger number: no limit
		if err == nil && limit > 0 && limit < least {
			least = limit
		}
	})
	return least
}
