// Package rlimits verifies, before a command begins, that the limits of this process leave enough to run. A program
// that runs out of descriptors or memory later ends with an error of the Go runtime that does not name the limit.
package rlimits

import (
	"errors"
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

const (
	// Descriptors is the number of file descriptors that a command needs.
	Descriptors = 24
	// Memory is the least limit of memory, in bytes, that a command runs with. The Go runtime reserves most of it as
	// address space when it starts.
	Memory = 1 << 30
)

// ErrTooLow means that a limit of this process is too low.
var ErrTooLow = errors.New("limit is too low")

// Check returns an error that wraps ErrTooLow and names the limit and its remedy. If the address space is limited and
// suffices, Check makes the garbage collector stay below the limit.
func Check() error {
	if err := descriptors(); err != nil {
		return err
	}
	for _, r := range []struct {
		resource    int
		name, shell string
		least       uint64
	}{
		{unix.RLIMIT_AS, "address space (RLIMIT_AS)", "ulimit -v unlimited", Memory},
		{unix.RLIMIT_DATA, "data (RLIMIT_DATA)", "ulimit -d unlimited", Memory / 4},
	} {
		var l unix.Rlimit
		if unix.Getrlimit(r.resource, &l) != nil || l.Cur == unix.RLIM_INFINITY {
			continue
		}
		if l.Cur < r.least {
			return fmt.Errorf("%w: %s allows %d MB, and %d MB are needed; raise it with \"%s\"",
				ErrTooLow, r.name, l.Cur>>20, r.least>>20, r.shell)
		}
		debug.SetMemoryLimit(int64(l.Cur - r.least/2))
	}
	return nil
}

// descriptors opens as many as are needed, because others that this process inherited count too.
func descriptors() error {
	opened := make([]int, 0, Descriptors)
	defer func() {
		for _, fd := range opened {
			_ = unix.Close(fd)
		}
	}()
	for range Descriptors {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EMFILE):
			var l unix.Rlimit
			_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
			return fmt.Errorf("%w: this process can open %d more files (RLIMIT_NOFILE allows %d), and %d are needed; "+
				"raise it with \"ulimit -n 1024\"", ErrTooLow, len(opened), l.Cur, Descriptors)
		case errors.Is(err, unix.ENFILE):
			return fmt.Errorf("%w: the system cannot open more files; raise fs.file-max", ErrTooLow)
		case err != nil:
			return nil // something else is wrong, and the command reports it
		}
		opened = append(opened, fd)
	}
	return nil
}
