package process

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrGone means that there is no such process or thread (any more). A process hidden by the hidepid mount option
// looks the same.
var ErrGone = errors.New("no such process")

// ErrDenied means that the kernel does not permit this process to read the file.
var ErrDenied = errors.New("permission denied")

// ErrFormat means that a file does not have the format in proc(5).
var ErrFormat = errors.New("unexpected format")

// maxFile limits the size of one file: maps with 65,530 mappings (vm.max_map_count) and long paths are smaller.
const maxFile = 64 << 20

// maxSmall limits the size of files that are small for every process. The longest line is in status, with 65,536 groups.
const maxSmall = 1 << 20

// procPath names a file of a process.
func procPath(pid int, file string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + file
}

// taskPath names a file of a thread.
func taskPath(pid, tid int, file string) string {
	return "/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/" + file
}

// wrap turns a system error into this package's sentinel errors and adds the file's name.
func wrap(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%s: %w", name, ErrGone)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w", name, ErrDenied)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// formatError describes the unexpected part of a file. The text of hostile files is quoted and shortened.
func formatError(what string, text string) error {
	const most = 60
	if len(text) > most {
		text = text[:most]
	}
	return fmt.Errorf("%w: %s %q", ErrFormat, what, text)
}
