package symbolize

import (
	"errors"
	"os"
	"path"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/elfimage"
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
	opened FileID
	module *Module
}

// add remembers the file that a module was read from.
func (h *heldFiles) add(f *os.File, opened FileID, m *Module) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byFile == nil || len(h.byFile) >= MaxImages {
		h.byFile = make(map[fileNumber]heldFile)
	}
	key := fileNumber{devMajor(opened.dev), devMinor(opened.dev), opened.ino}
	h.byFile[key] = heldFile{f, opened, m}
}

// hasEnded reports whether the process that had this mapping has ended.
func hasEnded(pid int, m *procfs.Mapping) bool {
	_, err := ptrace.ReadMemory(pid, m.Start, make([]byte, 1))
	return errors.Is(err, ptrace.ErrExited)
}

// mapped returns the module of the file that a process which has ended had
// mapped; nil if the file is not among those held, or was written to since it
// was opened.
func (h *heldFiles) mapped(m *procfs.Mapping) *Module {
	h.mu.Lock()
	held, ok := h.byFile[fileNumber{m.Major, m.Minor, m.Inode}]
	h.mu.Unlock()
	if !ok {
		return nil
	}
	if now, err := identify(held.file); err != nil || now != held.opened {
		return nil
	}
	return held.module.Latest()
}

// old opens the file that a process which has ended had mapped, if it is not
// held: the file of the mapping's path that has its device and inode, and has
// been like that for so long that it was so when the process was captured. An
// inode that was free since, and is another file's now, has changed later. Nil
// if there is none.
func (c *Cache) old(m *procfs.Mapping) *Module {
	if m.Deleted {
		return nil
	}
	f, st, err := Candidate(m.Path).File()
	if err != nil {
		return nil
	}
	img, err := elfimage.Open(f, path.Base(m.Path))
	if err != nil || !st.is(m) || time.Since(st.changed) < c.settled {
		_ = f.Close()
		return nil
	}
	return c.adopt(f, st, &Module{
		Image: img, Name: img.Name(), Arch: c.Arch, Path: m.Path, Sources: c.Sources,
		remote: remote{source: c.Sources.Remote},
	}, img.BuildID())
}
