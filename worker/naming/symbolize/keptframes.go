package symbolize

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/host/buildcache"
)

// kindOfFrames is the buildcache.Key.Kind under which names and lines of addresses are kept.
const kindOfFrames = "frames"

// keptFrames are names and lines of a module's addresses that an earlier run of this program has kept. For these
// addresses a capture need not read symbols and debugging information.
type keptFrames struct {
	folder buildcache.Folder
	key    buildcache.Key

	mu     sync.Mutex
	byAddr map[uint64][]annotation
	used   map[uint64]bool
	fresh  bool // this run has looked up addresses that are not in byAddr
}

// find returns the kept names and lines of an image address, or nil.
func (k *keptFrames) find(addr uint64) []annotation {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byAddr[addr]
	if known != nil {
		k.used[addr] = true
	}
	return known
}

// add records that this run has looked up an address that was not kept.
func (k *keptFrames) add() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fresh = true
}

// Kept reports whether an earlier run has kept the names and lines of an image address. It waits at most until the
// deadline for the kept results to be read.
func (m *Module) Kept(addr uint64, files *Deadline) bool { return m.keptAt(addr, files) != nil }

// keptAt returns the names and lines that are kept for an image address, or nil.
func (m *Module) keptAt(addr uint64, files *Deadline) []annotation {
	if m.Sources.Kept == nil {
		return nil
	}
	kept, _ := m.kept.Get(files, m.Warn, m.readKept)
	return kept.find(addr)
}

// readKept reads the kept names and lines of the module. It returns nil if nothing can be kept: no folder, or files
// that others than root can change (see administrators).
func (m *Module) readKept() *keptFrames {
	host.BeginWork()
	defer host.EndWork()
	folder := m.Sources.keptFolder()
	if folder == "" || m.Path == "" {
		return nil
	}
	debug, _, ok := m.findDebugFile()
	identity := m.debugIdentity(&debug, ok)
	if ok {
		_ = debug.Close()
	}
	key, ok := m.framesKey(identity)
	if !ok {
		return nil
	}
	return &keptFrames{folder: folder, key: key, byAddr: decodeFrames(folder.Load(key)), used: make(map[uint64]bool)}
}

// framesKey returns the key of the module's kept frames. The parameter debug is the result of debugIdentity. It returns
// false if the frames cannot be kept.
func (m *Module) framesKey(debug string) (buildcache.Key, bool) {
	build, program, image := m.Image.BuildID(), programID(), administrators(m.Image, m.Path)
	detail := program + "\n" + image + "\n" + debug
	return buildcache.Key{Kind: kindOfFrames, Build: build, Detail: detail},
		buildcache.IsBuildID(build) && program != "" && image != "" && debug != ""
}

// debugIdentity returns a text that identifies the debug file of the module, or the lack of one. It is "" if results
// depend on files that the text does not identify.
func (m *Module) debugIdentity(r *elfimage.FoundFile, found bool) string {
	switch {
	case found && r.How == elfimage.ByDebugData && m.remote.source == nil:
		return "in the image"
	case !found && m.remote.source == nil:
		return "none"
	case !found || r.How == elfimage.ByDebugData:
		return "" // a download may bring another file
	}
	if _, linked := elfimage.SupplementLink(r.Image); linked {
		return ""
	}
	return administrators(r.Image, r.Path)
}

// administrators returns the identity of a file if it belongs to root, only root can change it, and this program has
// the same file at the path. Otherwise it returns "".
func administrators(img *elfimage.Image, path string) string {
	reader := img.File()
	if reader == nil {
		return ""
	}
	outer, _, _ := reader.Outer()
	file, ok := outer.(*os.File)
	var opened, here syscall.Stat_t
	if !ok || syscall.Fstat(int(file.Fd()), &opened) != nil || syscall.Stat(path, &here) != nil {
		return ""
	}
	const othersWrite = syscall.S_IWGRP | syscall.S_IWOTH
	if opened.Dev != here.Dev || opened.Ino != here.Ino || opened.Uid != 0 || opened.Mode&othersWrite != 0 {
		return ""
	}
	return fmt.Sprintf("%q dev %d ino %d size %d mtime %d.%09d ctime %d.%09d", path, opened.Dev, opened.Ino, opened.Size,
		opened.Mtim.Sec, opened.Mtim.Nsec, opened.Ctim.Sec, opened.Ctim.Nsec)
}

// keep saves the names and lines of this run, if some are new and all parts of the module could be read.
func (m *Module) keep() error {
	kept, _ := m.kept.ifReady()
	if kept == nil {
		return nil
	}
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if !kept.fresh || !m.complete() {
		return nil
	}
	if key, ok := m.framesKey(m.debugFile); !ok || key != kept.key {
		return nil // the files have changed
	}
	kept.fresh = false
	all := m.certainFrames()
	for _, used := range []bool{true, false} { // first the addresses that this run has used
		for addr, known := range kept.byAddr {
			if len(all) < maxKeptFrames && kept.used[addr] == used {
				all[addr] = known
			}
		}
	}
	return kept.folder.Save(kept.key, encodeFrames(all))
}

// complete reports whether symbols, call frame information and derived names were read without an error.
func (m *Module) complete() bool {
	if symbols, _ := m.Symbols.ifReady(); symbols == nil || m.partial {
		return false
	}
	if table, _ := m.cfi.ifReady(); table == nil {
		return false
	}
	names, _ := m.derived.ifReady()
	return !m.stripped || names != nil || !selfnames.Concerns(m.Image)
}

// certainFrames returns the names and lines that this run has found, except those whose lookup had an error.
func (m *Module) certainFrames() map[uint64][]annotation {
	found := make(map[uint64][]annotation)
	m.known.mu.Lock()
	defer m.known.mu.Unlock()
	for addr, known := range m.known.byAddr {
		if len(found) < maxKeptFrames && len(known) <= maxKeptCalls && m.Lines.certain(addr) {
			found[addr] = known
		}
	}
	return found
}

// Keep saves names and lines of all modules for the next run of this program.
func (c *Cache) Keep() error {
	c.mu.Lock()
	modules := make([]*Module, 0, len(c.byID))
	for _, m := range c.byID {
		modules = append(modules, m)
	}
	c.mu.Unlock()
	errs := make([]error, 0, len(modules))
	for _, m := range modules {
		errs = append(errs, m.keep())
	}
	return errors.Join(errs...)
}
