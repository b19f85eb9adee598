package capture

import (
	"cmp"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/gopclntab"
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
)

// maxImages bounds the images that are kept. A server has some dozens; the
// bound is for a host where many trees are captured by one worker.
const maxImages = 512

// module is an image with what is derived from it, each part made when it is
// first needed. An image without a part has a nil there: a damaged file gives
// fewer names, never an error.
type module struct {
	image *elfimage.Image
	name  string
	arch  *arch.Arch
	// path and root are where the file was found: its path as the process has
	// it, and the process's root directory. Separate debug files are looked
	// for there.
	path, root string

	cfi     lazy[*cfi.Table]
	symbols lazy[*symbol.Table]
	golang  lazy[*gopclntab.Table]
	linker  lazy[bool]
	derived lazy[*selfnames.Names]
	remote  remote
	// stripped and lines are set by who makes symbols. stripped means that no
	// symbol table has the functions that the image does not export.
	stripped   bool
	lines      lines
	prefetched atomic.Bool // see space.prefetchInnermost
	known      annotations
	// told is what walks have found out about the image's instructions.
	told unwind.CodeCache

	jitOnce sync.Once
	jit     uint64 // see jitDescriptor

	shared *shared
}

// shared is what all modules share.
type shared struct {
	// cache holds decoded debugging information.
	cache *dwarf.Cache
	// folders are searched for debug files; nil means the default.
	folders []string
	// report is told what keeps names from being found; nil: nobody is.
	report func(error)
	// wanted is told which debug files are asked for; nil: nobody is.
	wanted func(image, buildID string)
	// remote is where debug files come from that this host does not have; nil:
	// nowhere.
	remote Remote
	// awaitNames is Config.AwaitNames. deriving lets one image at a time be scanned for names.
	awaitNames bool
	deriving   sync.Mutex
}

// tell reports what keeps names from being found.
func (s *shared) tell(errs ...error) {
	if s.report == nil {
		return
	}
	for _, err := range errs {
		s.report(err)
	}
}

// table returns the call frame information, nil if there is none; false if it
// has not been read by the deadline.
func (m *module) table(late *deadline) (*cfi.Table, bool) {
	if t, ok := m.cfi.now(); ok {
		return t, true
	}
	return m.cfi.get(late, m.tell, m.readTable)
}

func (m *module) readTable() *cfi.Table {
	s, _ := m.image.CFISections() // an unreadable part is an absent one
	if len(s.EHFrame.Data) == 0 && len(s.DebugFrame.Data) == 0 {
		if s.DebugFrame = elfimage.SectionData(m.debugFrame()); len(s.DebugFrame.Data) == 0 {
			return nil
		}
	}
	t, err := cfi.New(cfi.Sections{
		EHFrameHdr: cfi.Section(s.EHFrameHdr), EHFrame: cfi.Section(s.EHFrame), DebugFrame: cfi.Section(s.DebugFrame),
		Order: m.image.Order(), AddrSize: m.image.AddrSize(), Arch: m.arch,
		TextAddr: s.TextAddr, DataAddr: s.DataAddr,
	})
	if err != nil {
		return nil
	}
	return t
}

// start returns where a program begins in the image, see unwind.Module; known
// is false if it has not been read by the deadline whether that is one.
func (m *module) start(late *deadline) (addr uint64, linker, known bool) {
	if addr = m.image.Start(); addr != 0 || m.image.Entry() == 0 {
		return addr, false, true
	}
	linker, known = m.linker.now()
	if !known {
		linker, known = m.linker.get(late, m.tell, m.image.DynamicLinker)
	}
	if linker {
		addr = m.image.Entry()
	}
	return addr, linker, known
}

// images keeps modules over captures, one for each build-id. A file without a
// build-id is known by its device, inode and modification time.
type images struct {
	arch   *arch.Arch
	shared *shared
	mu     sync.Mutex
	byID   map[string]*module
	held   heldFiles
	// settled is how long a file must not have changed to be taken for the one
	// that an ended process had mapped.
	settled time.Duration
}

func newImages(a *arch.Arch, s *shared) *images {
	const settled = 10 * time.Minute // a capture looks for what it needs within seconds
	return &images{arch: a, shared: s, byID: make(map[string]*module), settled: settled}
}

// mapped returns what the process has mapped at maps[i], and where; there is no module if find has none, and the
// mapping is not in the place of one either.
func (c *images) mapped(pid int, maps []procfs.Mapping, i int) found {
	mod := c.find(pid, maps, i)
	if mod == nil {
		return c.moved(pid, maps, i)
	}
	bias, ok := mod.image.Bias(maps[i].Start, maps[i].Offset)
	if !ok {
		return found{}
	}
	return found{module: mod, bias: bias, name: moduleName(maps[i].Path)}
}

// find returns the module that the process has mapped at maps[i], nil if it is
// not an ELF image or cannot be read. What is mapped is asked of the process:
// a file counts only if it has the build-id that the process's memory has.
func (c *images) find(pid int, maps []procfs.Mapping, i int) *module {
	base, ok := baseMapping(maps, i)
	if !ok {
		return nil
	}
	m := c.ask(pid, maps, i, base)
	if base.Inode == 0 || !hasEnded(pid, &base) {
		return m
	}
	// What it answered may be half of it.
	if held := c.held.mapped(&base); held != nil {
		return held
	}
	if old := c.old(&base); old != nil {
		return old
	}
	return m
}

// ask is find for a live process.
func (c *images) ask(pid int, maps []procfs.Mapping, i int, base procfs.Mapping) *module {
	inMemory, err := elfimage.FromMemory(processReader(pid), base.Start, path.Base(base.Path))
	if err != nil {
		return nil
	}
	id := inMemory.BuildID()
	if m := c.known(id); m != nil {
		return m
	}
	if base.Inode != 0 {
		for _, open := range candidates(pid, &base, &maps[i]) {
			if m := c.fromFile(pid, open, &base, id); m != nil {
				return m
			}
		}
	}
	return c.fromMemory(pid, base, id)
}

func (c *images) known(id string) *module {
	if id == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.byID[id]
	if m != nil {
		m = m.latest()
		c.byID[id] = m
	}
	return m
}

// none reports whether no module is known yet.
func (c *images) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byID) == 0
}

// keep remembers a module, or returns the one that came first.
func (c *images) keep(id string, m *module) *module {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.byID[id]; old != nil {
		return old
	}
	if len(c.byID) >= maxImages {
		for k := range c.byID {
			delete(c.byID, k)
			break
		}
	}
	c.byID[id] = m
	return m
}

// fromFile opens one candidate and keeps it if it is the mapped file: by
// build-id, or, where there is none, by device and inode.
func (c *images) fromFile(pid int, open candidate, base *procfs.Mapping, id string) *module {
	f, st, err := open.file()
	if err != nil {
		return nil
	}
	img, err := elfimage.Open(f, path.Base(base.Path))
	// A build-id that no segment has, as in what Go's own linker makes, is not in memory, and says nothing then.
	if err != nil || id != "" && img.BuildID() != id || id == "" && !st.is(base) {
		_ = f.Close()
		return nil
	}
	return c.adopt(f, st, &module{
		image: img, name: img.Name(), arch: c.arch, path: insideRoot(pid, base.Path), root: rootOf(pid), shared: c.shared,
		remote: remote{source: c.shared.remote},
	}, id)
}

// adopt keeps a module that was read from a file.
func (c *images) adopt(f *os.File, st fileID, read *module, id string) *module {
	// The file stays open as long as the image is kept: its sections are read
	// when they are needed, and a replaced file must not be read instead.
	m := c.keep(cmp.Or(id, st.key()), read)
	if m.image != read.image {
		_ = f.Close()
	} else {
		c.held.add(f, st, m)
	}
	return m
}

// fromMemory copies what is needed of the image out of the process: the vDSO,
// and files that can no longer be opened. It is done now, since the process
// may be gone when a section is needed.
func (c *images) fromMemory(pid int, base procfs.Mapping, id string) *module {
	img, err := elfimage.FromMemory(processReader(pid), base.Start, moduleName(base.Path))
	if err != nil {
		return nil
	}
	m := &module{
		image: img, name: img.Name(), arch: c.arch, shared: c.shared, remote: remote{source: c.shared.remote},
	}
	_, _ = m.table(nil)
	_, _ = m.symbolTable(nil)
	_, _, _ = m.start(nil)
	if id == "" {
		return m
	}
	return c.keep(id, m)
}

// moduleName is what a frame says of where it lies: a file's base name, or
// "[vdso]" and the like as they are.
func moduleName(p string) string {
	if p == "" {
		return "[anon]"
	}
	return path.Base(p)
}

// baseMapping finds the mapping that holds the ELF header of the image that
// maps[i] is part of: the nearest one before it of the same file at offset 0.
func baseMapping(maps []procfs.Mapping, i int) (procfs.Mapping, bool) {
	m := &maps[i]
	if m.Inode == 0 {
		return *m, m.Path == "[vdso]"
	}
	for j := i; j >= 0; j-- {
		b := &maps[j]
		if sameFile(b, m) && b.Offset == 0 {
			return *b, true
		}
	}
	return procfs.Mapping{}, false
}

// found is what an executable mapping turned out to hold.
type found struct {
	module *module
	bias   uint64
	name   string // what frames in it say of where they lie
}
