package symbolize

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

// MaxImages bounds the images that are kept. A server has some dozens; the
// bound is for a host where many trees are captured by one worker.
const MaxImages = 512

// Module is an image with what is derived from it, each part made when it is
// first needed. An image without a part has a nil there: a damaged file gives
// fewer names, never an error.
type Module struct {
	Image *elfimage.Image
	Name  string
	Arch  *arch.Arch
	// Path and root are where the file was found: its path as the process has
	// it, and the process's root directory. Separate debug files are looked
	// for there.
	Path, Root string

	cfi     Lazy[*cfi.Table]
	Symbols Lazy[*symbol.Table]
	golang  Lazy[*gopclntab.Table]
	linker  Lazy[bool]
	derived Lazy[*selfnames.Names]
	remote  remote
	// stripped and lines are set by who makes symbols. stripped means that no
	// symbol table has the functions that the image does not export.
	stripped   bool
	Lines      lines
	Prefetched atomic.Bool // see space.prefetchInnermost
	known      annotations
	// CodeCache is what walks have found out about the image's instructions.
	CodeCache unwind.CodeCache

	jitOnce sync.Once
	JIT     uint64 // see jitDescriptor

	Sources *Sources
}

// Sources is what all modules share.
type Sources struct {
	// Cache holds decoded debugging information.
	Cache *dwarf.Cache
	// Folders are searched for debug files; nil means the default.
	Folders []string
	// Report is told what keeps names from being found; nil: nobody is.
	Report func(error)
	// Wanted is told which debug files are asked for; nil: nobody is.
	Wanted func(image, buildID string)
	// Remote is where debug files come from that this host does not have; nil:
	// nowhere.
	Remote Remote
	// AwaitNames is Config.AwaitNames. deriving lets one image at a time be scanned for names.
	AwaitNames bool
	deriving   sync.Mutex
}

// Tell reports what keeps names from being found.
func (s *Sources) Tell(errs ...error) {
	if s.Report == nil {
		return
	}
	for _, err := range errs {
		s.Report(err)
	}
}

// Table returns the call frame information, nil if there is none; false if it
// has not been read by the deadline.
func (m *Module) Table(late *Deadline) (*cfi.Table, bool) {
	if t, ok := m.cfi.now(); ok {
		return t, true
	}
	return m.cfi.Get(late, m.Tell, m.readTable)
}

func (m *Module) readTable() *cfi.Table {
	s, _ := m.Image.CFISections() // an unreadable part is an absent one
	if len(s.EHFrame.Data) == 0 && len(s.DebugFrame.Data) == 0 {
		if s.DebugFrame = elfimage.SectionData(m.debugFrame()); len(s.DebugFrame.Data) == 0 {
			return nil
		}
	}
	t, err := cfi.New(cfi.Sections{
		EHFrameHdr: cfi.Section(s.EHFrameHdr), EHFrame: cfi.Section(s.EHFrame), DebugFrame: cfi.Section(s.DebugFrame),
		Order: m.Image.Order(), AddrSize: m.Image.AddrSize(), Arch: m.Arch,
		TextAddr: s.TextAddr, DataAddr: s.DataAddr,
	})
	if err != nil {
		return nil
	}
	return t
}

// Start returns where a program begins in the image, see unwind.Module; known
// is false if it has not been read by the deadline whether that is one.
func (m *Module) Start(late *Deadline) (addr uint64, linker, known bool) {
	if addr = m.Image.Start(); addr != 0 || m.Image.Entry() == 0 {
		return addr, false, true
	}
	linker, known = m.linker.now()
	if !known {
		linker, known = m.linker.Get(late, m.Tell, m.Image.DynamicLinker)
	}
	if linker {
		addr = m.Image.Entry()
	}
	return addr, linker, known
}

// Cache keeps modules over captures, one for each build-id. A file without a
// build-id is known by its device, inode and modification time.
type Cache struct {
	Arch    *arch.Arch
	Sources *Sources
	mu      sync.Mutex
	byID    map[string]*Module
	held    heldFiles
	// settled is how long a file must not have changed to be taken for the one
	// that an ended process had mapped.
	settled time.Duration
}

// NewCache returns an empty cache of images for an architecture.
func NewCache(a *arch.Arch, s *Sources) *Cache {
	const settled = 10 * time.Minute // a capture looks for what it needs within seconds
	return &Cache{Arch: a, Sources: s, byID: make(map[string]*Module), settled: settled}
}

// Mapped returns what the process has mapped at maps[i], and where; there is no module if find has none, and the
// mapping is not in the place of one either.
func (c *Cache) Mapped(pid int, maps []procfs.Mapping, i int) Placed {
	mod := c.find(pid, maps, i)
	if mod == nil {
		return c.moved(pid, maps, i)
	}
	bias, ok := mod.Image.Bias(maps[i].Start, maps[i].Offset)
	if !ok {
		return Placed{}
	}
	return Placed{Module: mod, Bias: bias, Name: ModuleName(maps[i].Path)}
}

// find returns the module that the process has mapped at maps[i], nil if it is
// not an ELF image or cannot be read. What is mapped is asked of the process:
// a file counts only if it has the build-id that the process's memory has.
func (c *Cache) find(pid int, maps []procfs.Mapping, i int) *Module {
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
func (c *Cache) ask(pid int, maps []procfs.Mapping, i int, base procfs.Mapping) *Module {
	inMemory, err := elfimage.FromMemory(ProcessMemory(pid), base.Start, path.Base(base.Path))
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

func (c *Cache) known(id string) *Module {
	if id == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.byID[id]
	if m != nil {
		m = m.Latest()
		c.byID[id] = m
	}
	return m
}

// Empty reports whether no module is known yet.
func (c *Cache) Empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byID) == 0
}

// keep remembers a module, or returns the one that came first.
func (c *Cache) keep(id string, m *Module) *Module {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.byID[id]; old != nil {
		return old
	}
	if len(c.byID) >= MaxImages {
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
func (c *Cache) fromFile(pid int, open Candidate, base *procfs.Mapping, id string) *Module {
	f, st, err := open.File()
	if err != nil {
		return nil
	}
	img, err := elfimage.Open(f, path.Base(base.Path))
	// A build-id that no segment has, as in what Go's own linker makes, is not in memory, and says nothing then.
	if err != nil || id != "" && img.BuildID() != id || id == "" && !st.is(base) {
		_ = f.Close()
		return nil
	}
	return c.adopt(f, st, &Module{
		Image: img, Name: img.Name(), Arch: c.Arch, Path: insideRoot(pid, base.Path), Root: rootOf(pid), Sources: c.Sources,
		remote: remote{source: c.Sources.Remote},
	}, id)
}

// adopt keeps a module that was read from a file.
func (c *Cache) adopt(f *os.File, st FileID, read *Module, id string) *Module {
	// The file stays open as long as the image is kept: its sections are read
	// when they are needed, and a replaced file must not be read instead.
	m := c.keep(cmp.Or(id, st.key()), read)
	if m.Image != read.Image {
		_ = f.Close()
	} else {
		c.held.add(f, st, m)
	}
	return m
}

// fromMemory copies what is needed of the image out of the process: the vDSO,
// and files that can no longer be opened. It is done now, since the process
// may be gone when a section is needed.
func (c *Cache) fromMemory(pid int, base procfs.Mapping, id string) *Module {
	img, err := elfimage.FromMemory(ProcessMemory(pid), base.Start, ModuleName(base.Path))
	if err != nil {
		return nil
	}
	m := &Module{
		Image: img, Name: img.Name(), Arch: c.Arch, Sources: c.Sources, remote: remote{source: c.Sources.Remote},
	}
	_, _ = m.Table(nil)
	_, _ = m.SymbolTable(nil)
	_, _, _ = m.Start(nil)
	if id == "" {
		return m
	}
	return c.keep(id, m)
}

// ModuleName is what a frame says of where it lies: a file's base name, or
// "[vdso]" and the like as they are.
func ModuleName(p string) string {
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

// Placed is what an executable mapping turned out to hold.
type Placed struct {
	Module *Module
	Bias   uint64
	Name   string // what frames in it say of where they lie
}
