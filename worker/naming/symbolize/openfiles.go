package symbolize

import (
	"os"
	"path"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host/rootfs"
)

// openFiles keeps the files of the cached images open. The key is the device and inode that /proc/PID/maps shows. When
// a process has ended, the worker cannot read its memory to verify a file. But while a file is open, no other file gets
// its inode, so an open file with the device and inode of the mapping is the mapped file.
type openFiles struct {
	mu     sync.Mutex
	byFile map[fileNumber]openFile
}

// fileNumber identifies a file as /proc/PID/maps does.
type fileNumber struct {
	major, minor uint32
	inode        uint64
}

type openFile struct {
	file   *os.File
	opened FileID
	module *Module
}

// add remembers the file from which a module was read.
func (o *openFiles) add(f *os.File, opened FileID, m *Module) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byFile == nil || len(o.byFile) >= MaxImages {
		o.byFile = make(map[fileNumber]openFile)
	}
	key := fileNumber{devMajor(opened.dev), devMinor(opened.dev), opened.ino}
	o.byFile[key] = openFile{f, opened, m}
}

// mapped returns the module of a file that an ended process had mapped. It returns nil if the file is not open, or if
// it has changed since it was opened.
func (o *openFiles) mapped(m *process.Mapping) *Module {
	o.mu.Lock()
	kept, ok := o.byFile[fileNumber{m.Major, m.Minor, m.Inode}]
	o.mu.Unlock()
	if !ok {
		return nil
	}
	if now, err := identify(kept.file); err != nil || now != kept.opened {
		return nil
	}
	return kept.module.Latest()
}

// openUnchanged opens a file that an ended process had mapped and that is not open yet. The file must be at the
// mapping's path, with the mapping's device and inode. It must not have changed for long, so that it existed when the
// process was captured. A reused inode has a later change time. Without such a file, openUnchanged returns nil. The
// process had mapped this very file, so the worker opens it with its own rights, as with /proc/PID/map_files.
func (c *Cache) openUnchanged(m *process.Mapping) *Module {
	if m.Deleted {
		return nil
	}
	f, err := rootfs.OpenSame(m.Path, func(device, inode uint64) bool { return isMapped(m, device, inode) })
	if err != nil {
		return nil
	}
	user, err := rootfs.OfFile(m.Path, f)
	if err != nil {
		_ = f.Close()
		return nil
	}
	f, st, err := identified(f)
	if err != nil {
		return nil
	}
	img, err := elfimage.Open(f, path.Base(m.Path))
	if err != nil || !st.matches(m) || time.Since(st.changed) < c.minUnchanged {
		_ = f.Close()
		return nil
	}
	return c.adopt(f, st, &Module{
		Image: img, Name: img.Name(), Arch: c.Arch, Path: m.Path, User: user, Sources: c.Sources,
		remote: remote{source: c.Sources.Remote},
	}, img.BuildID())
}
