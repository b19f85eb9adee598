package capture

import (
	"errors"
	"os"
	"sync"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
)

// heldFiles are the files of the images that are kept, by what maps says of a
// file. A process that ends just after it was captured cannot be asked any
// more what it had mapped; but a file that is held open is still the one that
// has this device and inode.
type heldFiles struct {
	mu     sync.Mutex
	byFile map[fileNumber]heldFile
}

// fileNumber is what maps says of a file.
type fileNumber struct {
	major, minor uint32
	inode        uint64
}

type heldFile struct {
	file   *os.File
	opened fileID
	module *module
}

// add remembers the file that a module was read from.
func (h *heldFiles) add(f *os.File, opened fileID, m *module) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byFile == nil || len(h.byFile) >= maxImages {
		h.byFile = make(map[fileNumber]heldFile)
	}
	key := fileNumber{devMajor(opened.dev), devMinor(opened.dev), opened.ino}
	h.byFile[key] = heldFile{f, opened, m}
}

// mapped returns the module of the file that a process which has ended had
// mapped; nil if the process has not ended, the file is not among those held,
// or was written to since it was opened.
func (h *heldFiles) mapped(pid int, m *procfs.Mapping) *module {
	if m.Inode == 0 {
		return nil
	}
	if _, err := ptrace.ReadMemory(pid, m.Start, make([]byte, 1)); !errors.Is(err, ptrace.ErrExited) {
		return nil
	}
	h.mu.Lock()
	held, ok := h.byFile[fileNumber{m.Major, m.Minor, m.Inode}]
	h.mu.Unlock()
	if !ok {
		return nil
	}
	if now, err := identify(held.file); err != nil || now != held.opened {
		return nil
	}
	return held.module.latest()
}
