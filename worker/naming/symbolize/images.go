package symbolize

import (
	"cmp"
	"errors"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/host/rootfs"
)

// MaxImages bounds the images that are cached. One server has some dozens. The bound matters on a host where one
// worker captures many servers with different builds.
const MaxImages = 512

// Module is an image with the tables derived from it. Each table is read when it is first needed. A missing or
// damaged table is nil: a damaged file gives fewer names and never an error.
type Module struct {
	Image *elfimage.Image
	Name  string
	Arch  *arch.Arch
	// Path is the path of the file as the process sees it; empty: the image was read from memory. Root is the process's
	// root directory, or empty if it is the same as this program's. Separate debug files are searched below Root.
	Path, Root string
	// User has the user and group ids with which the worker opens debug files that the image names.
	User rootfs.User

	cfi     Lazy[*cfi.Table]
	Symbols Lazy[*symbol.Table]
	golang  Lazy[*golang.Table]
	linker  Lazy[bool]
	derived Lazy[*selfnames.Names]
	remote  remote
	// readSymbols sets stripped and Lines. stripped means that no symbol table has the functions that the image does
	// not export.
	stripped bool
	Lines    lines
	// readSymbols also sets partial and debugFile. partial means that a symbol table could not be read. debugFile is the
	// result of debugIdentity.
	partial    bool
	debugFile  string
	kept       Lazy[*keptFrames]
	Prefetched atomic.Bool // see naming.Space.PrefetchInnermost
	known      annotations
	// CodeCache keeps the results of the unwinder's instruction analysis.
	CodeCache unwind.CodeCache

	jitOnce sync.Once
	JIT     uint64 // see JitDescriptor

	Sources *Sources
}

// Sources has the settings and caches that all modules share.
type Sources struct {
	// Cache caches decoded debugging information.
	Cache *dwarf.Cache
	// Folders are searched for debug files; nil means the default.
	Folders []string
	// Report, if not nil, is called with each error that causes names to be missing.
	Report func(error)
	// Wanted, if not nil, is called with each debug file that is requested from Remote.
	Wanted func(image, buildID string)
	// Remote provides debug files that are not installed on this host. If it is nil, no files are downloaded.
	Remote Remote
	// AwaitNames is Config.AwaitNames. deriving is locked while an image is scanned for names, so that only one scan
	// runs at a time.
	AwaitNames bool
	deriving   sync.Mutex
	// Kept, if not nil, returns the folder in which results are kept from one run of this program to the next.
	Kept func() buildcache.Folder
	// Scanning, if not nil, is called before the code of an image is scanned for names that are then kept in the
	// folder. The function ended that it returns is called after the scan. Its argument is the error that prevents
	// keeping the names, or nil.
	Scanning func(image, folder string) (ended func(error))
}

// folders returns the folders for debug files.
func (s *Sources) folders() []string {
	if s.Folders == nil {
		return []string{elfimage.DefaultFolder}
	}
	return s.Folders
}

// Warn reports errors that cause names to be missing.
func (s *Sources) Warn(errs ...error) {
	if s.Report == nil {
		return
	}
	for _, err := range errs {
		s.Report(err)
	}
}

// Table returns the call frame information, or nil if the image has none. It returns false if it was not read by the
// deadline.
func (m *Module) Table(late *Deadline) (*cfi.Table, bool) {
	if t, ok := m.cfi.ifReady(); ok {
		return t, true
	}
	return m.cfi.Get(late, m.Warn, m.readTable)
}

func (m *Module) readTable() *cfi.Table { return tableOf(m.Image, m.Arch, m.debugFrame) }

// tableOf reads the call frame information of an image. If the image has none, it calls debugFrame, unless that is nil.
func tableOf(m *elfimage.Image, a *arch.Arch, debugFrame func() cfi.Section) *cfi.Table {
	s, _ := m.CFISections() // an unreadable section is treated as missing
	if len(s.EHFrame.Data) == 0 && len(s.DebugFrame.Data) == 0 {
		if debugFrame == nil {
			return nil
		}
		if s.DebugFrame = elfimage.SectionData(debugFrame()); len(s.DebugFrame.Data) == 0 {
			return nil
		}
	}
	t, err := cfi.New(cfi.Sections{
		EHFrameHdr: cfi.Section(s.EHFrameHdr), EHFrame: cfi.Section(s.EHFrame), DebugFrame: cfi.Section(s.DebugFrame),
		Order: m.Order(), AddrSize: m.AddrSize(), Arch: a,
		TextAddr: s.TextAddr, DataAddr: s.DataAddr,
	})
	if err != nil {
		return nil
	}
	return t
}

// Start returns the address in the image at which a program begins, see unwind.Module. The address is 0 for a library.
// The result linker reports whether the image is the dynamic linker. known is false if the deadline passed before this
// was found out.
func (m *Module) Start(late *Deadline) (addr uint64, linker, known bool) {
	if addr = m.Image.Start(); addr != 0 || m.Image.Entry() == 0 {
		return addr, false, true
	}
	linker, known = m.linker.ifReady()
	if !known {
		linker, known = m.linker.Get(late, m.Warn, m.Image.DynamicLinker)
	}
	if linker {
		addr = m.Image.Entry()
	}
	return addr, linker, known
}

// Cache keeps modules across captures, one for each build-id. A file without a build-id is identified by its device,
// inode and modification time.
type Cache struct {
	Arch    *arch.Arch
	Sources *Sources
	mu      sync.Mutex
	byID    map[string]*Module
	open    openFiles
	// minUnchanged is how long a file must be unchanged to be taken for the file that an ended process had mapped.
	minUnchanged time.Duration
}

// NewCache returns an empty cache of images for an architecture.
func NewCache(a *arch.Arch, s *Sources) *Cache {
	const minUnchanged = 10 * time.Minute // a capture opens the files that it needs within seconds
	return &Cache{Arch: a, Sources: s, byID: make(map[string]*Module), minUnchanged: minUnchanged}
}

// imagesTime bounds the time for finding the images of a process. A page or a file that has not arrived by then is not
// expected to arrive.
const imagesTime = 10 * time.Second

// mappedBefore is Mapped with a deadline. If the search does not end in time, it returns a Placed without a module, and
// the goroutine of the search continues.
func (c *Cache) mappedBefore(late *Deadline, pid int, maps []process.Mapping, i int) Placed {
	var search Lazy[Placed]
	f, _ := search.Get(late, c.Sources.Warn, func() Placed { return c.Mapped(pid, maps, i) })
	return f
}

// Mapped returns the module that the process has mapped at maps[i], and its place. It may never return, if a page of the
// process or a file does not arrive: callers use Lazy or mappedBefore. It also finds the image of code that a program
// has moved to memory without a file. Placed.Module is nil if the mapping has no image.
func (c *Cache) Mapped(pid int, maps []process.Mapping, i int) Placed {
	mod := c.find(pid, maps, i)
	if mod == nil {
		return c.moved(pid, maps, i)
	}
	bias, ok := mod.Image.Bias(maps[i].Start, maps[i].Offset)
	if !ok {
		return Placed{}
	}
	f := Placed{Module: mod, Bias: bias, Name: ModuleName(maps[i].Path)}
	c.checkFile(pid, maps, i, &f)
	return f
}

// find returns the module that the process has mapped at maps[i]. It returns nil if that is not an ELF image or
// cannot be read. A file is used only if it has the build-id that is in the process's memory.
func (c *Cache) find(pid int, maps []process.Mapping, i int) *Module {
	base, ok := baseMapping(maps, i)
	if !ok {
		return nil
	}
	m := c.findLive(pid, maps, i, base)
	if base.Inode == 0 || !(process.ID{PID: pid}).Ended() {
		return m
	}
	// The process may have ended between two reads, so the module may be incomplete.
	if found := c.open.mapped(&base); found != nil {
		return found
	}
	if found := c.openUnchanged(&base); found != nil {
		return found
	}
	return m
}

// findLive is find for a live process.
func (c *Cache) findLive(pid int, maps []process.Mapping, i int, base process.Mapping) *Module {
	inMemory, err := elfimage.FromMemory(ProcessMemory(pid), base.Start, path.Base(base.Path))
	if errors.Is(err, process.ErrNotPermitted) && base.Inode != 0 {
		return c.byLink(pid, &base, &maps[i])
	}
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
		if m, _ := c.movedHeader(pid, maps, &base, inMemory); m != nil {
			return m
		}
	}
	return c.fromMemory(ProcessMemory(pid), pid, base, id)
}

// byLink opens the file of a mapping by the links in /proc (see links). It is for a process whose memory this program
// may not read. Some file systems have another device in the mappings than in the file's status, so only the inode is
// compared.
func (c *Cache) byLink(pid int, base, m *process.Mapping) *Module {
	for _, open := range links(pid, base, m) {
		f, st, err := open.File()
		if err != nil {
			continue
		}
		img, err := elfimage.Open(f, path.Base(base.Path))
		if err != nil || st.ino != base.Inode {
			_ = f.Close()
			continue
		}
		return c.adoptFile(pid, f, st, img, base, img.BuildID())
	}
	return nil
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

// Empty reports whether the cache has no module yet.
func (c *Cache) Empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byID) == 0
}

// keep adds a module to the cache and returns it. If the cache already has a module for this id, keep returns the
// cached one.
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

// fromFile opens one candidate and caches it if it is the mapped file, and returns nil if it is not. The file must have
// the same build-id or, without a build-id, the same device and inode.
func (c *Cache) fromFile(pid int, open Candidate, base *process.Mapping, id string) *Module {
	f, st, err := open.File()
	if err != nil {
		return nil
	}
	img, err := elfimage.Open(f, path.Base(base.Path))
	// Go's own linker puts the build-id outside all segments. It is then not in memory, and cannot be compared.
	if err != nil || id != "" && img.BuildID() != id || id == "" && !st.matches(base) {
		_ = f.Close()
		return nil
	}
	return c.adoptFile(pid, f, st, img, base, id)
}

// adoptFile is adopt for an image in the file of a mapping. If the process has ended, it closes the file and returns
// nil.
func (c *Cache) adoptFile(
	pid int, f *os.File, st FileID, img *elfimage.Image, m *process.Mapping, id string,
) *Module {
	user, err := rootfs.OfProcess(pid)
	if err != nil {
		_ = f.Close()
		return nil
	}
	path := insideRoot(pid, m.Path)
	return c.adopt(f, st, &Module{
		Image: img, Name: img.Name(), Arch: c.Arch, Path: path, Root: rootOf(pid, path), User: user,
		Sources: c.Sources, remote: remote{source: c.Sources.Remote},
	}, id)
}

// adopt caches a module that was read from a file.
func (c *Cache) adopt(f *os.File, st FileID, read *Module, id string) *Module {
	// The file stays open as long as the image is cached: its sections are read when they are needed, and a file that
	// replaced it must not be read instead.
	m := c.keep(cmp.Or(id, st.key()), read)
	if m.Image != read.Image {
		_ = f.Close()
	} else {
		c.open.add(f, st, m)
	}
	return m
}

// fromMemory copies the image from the process's memory: the vDSO, and files that can no longer be opened. It reads
// all tables now, because the process may have ended when they are needed. If the process ends meanwhile, tables may be
// missing, so the module is not cached.
func (c *Cache) fromMemory(read elfimage.ReadMemory, pid int, base process.Mapping, id string) *Module {
	img, err := elfimage.FromMemory(read, base.Start, ModuleName(base.Path))
	if err != nil {
		return nil
	}
	user, err := rootfs.OfProcess(pid)
	if err != nil {
		return nil
	}
	m := &Module{
		Image: img, Name: img.Name(), Arch: c.Arch, User: user, Sources: c.Sources,
		remote: remote{source: c.Sources.Remote},
	}
	_, _ = m.Table(nil)
	_, _ = m.SymbolTable(nil)
	_, _, _ = m.Start(nil)
	if id == "" || (process.ID{PID: pid}).Ended() {
		return m
	}
	return c.keep(id, m)
}

// ModuleName returns the module name of a frame: the base name of a file, or a name such as "[vdso]" unchanged.
func ModuleName(p string) string {
	if p == "" {
		return "[anon]"
	}
	return path.Base(p)
}

// baseMapping finds the mapping with the ELF header of the image that maps[i] is part of. This is the nearest mapping
// at or before maps[i] with the same file and offset 0.
func baseMapping(maps []process.Mapping, i int) (process.Mapping, bool) {
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
	return process.Mapping{}, false
}

// Placed is the image of an executable mapping, with its load bias.
type Placed struct {
	Module *Module
	Bias   uint64
	Name   string // the module name of frames in the image
	// Moved means that the process has moved the code to memory that is not the image's file. Origin is then a mapping
	// of the image's file. If the process has no such mapping left, Origin has only the path, device and inode.
	Moved  bool
	Origin process.Mapping
}
