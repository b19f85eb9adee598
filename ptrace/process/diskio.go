package process

import (
	"errors"
	"strconv"
	"strings"
)

var errIO = errors.New("/proc/PID/io has another form")

// DiskIO is how many bytes a process has had read from disks and written to them since its start. The page cache answers other
// reads. Pages that the process changes in the cache count as written when they change (see proc_pid_io(5)).
type DiskIO struct{ Read, Written uint64 }

// ReadDiskIO reads /proc/PID/io. The kernel requires the right to trace the process.
func ReadDiskIO(pid int) (d DiskIO, err error) {
	text, err := readFileOnce(procPath(pid, "io"))
	if err != nil {
		return DiskIO{}, err
	}
	found := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ": ")
		var into *uint64
		switch name {
		case "read_bytes":
			into = &d.Read
		case "write_bytes":
			into = &d.Written
		default:
			continue
		}
		if *into, err = strconv.ParseUint(strings.TrimSpace(value), 10, 64); err != nil {
			return DiskIO{}, errIO
		}
		found++
	}
	if found != 2 {
		return DiskIO{}, errIO
	}
	return d, nil
}
