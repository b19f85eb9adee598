package naming

import (
	"bytes"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// For samples, the kernel copies stacks of a running process, and the worker unwinds them later. Meanwhile the process
// may have freed the code of a query, and compiled the code of the next query at the same addresses. So the code that
// the worker reads may differ from the code at the moment of the stack. It is a candidate: package unwind verifies it
// against the stack (see unwind.Candidates). The store keeps the last candidates, because the process often frees the
// code of a query before the last stacks of the query are unwound.

// Bounds of the memory for candidates.
const (
	maxLaterImages  = 64       // images of a process
	maxLaterProcess = 4 << 20  // bytes of a process
	maxLaterAll     = 32 << 20 // bytes of all processes
	maxLaterCode    = 4 << 20  // bytes of code that one search reads
)

// Times between two looks at a process: reads of its memory, to compare known code or to search for new code.
const (
	// laterInterval is the time after a look for which the result is used without another look. It is also the least
	// time between two searches.
	laterInterval = 20 * time.Millisecond
	// laterPause is the least time between two searches of a process without generated code and without LLVM.
	laterPause = time.Second
	// laterShare bounds the time of all looks at all processes. After each look there is a pause of laterShare times
	// the duration of the look, but at most laterInterval.
	laterShare = 20
)

// LaterStore bounds the memory of all Laters that it makes. It is safe for concurrent use.
type LaterStore struct {
	Arch *arch.Arch

	mu   sync.Mutex
	all  map[*Later]struct{} // the Laters that have images
	size int

	watcher watcher

	next atomic.Int64 // when the next look at a process may begin, Unix time in ns
}

// look calls the function run, which looks at a process. During the pause after the last look it does not call run, and
// returns false.
func (s *LaterStore) look(run func()) bool {
	began := time.Now()
	if began.UnixNano() < s.next.Load() {
		return false
	}
	run()
	now := time.Now()
	s.next.Store(now.UnixNano() + min(laterShare*now.Sub(began), laterInterval).Nanoseconds())
	return true
}

// Later has descriptions of generated code of one process that were read before or after its stacks were copied. It is
// safe for concurrent use.
type Later struct {
	store     *LaterStore
	pid       int
	startTime uint64
	// The functions read and maps read the memory and the mappings of the process. Tests replace them.
	read symbolize.MemoryReader
	maps func() ([]process.Mapping, error)

	mu       sync.Mutex // held during a search; guards searched and empty
	searched time.Time
	empty    bool // the last search found nothing, and no sign of a compiler

	images atomic.Pointer[[]*laterImage] // the most recent first
	size   int                           // bytes of the images; size and used are guarded by store.mu
	used   time.Time

	wanted atomic.Int64 // when the watcher was last asked to read the process, Unix time in ns
}

// laterImage is an .eh_frame section with the code that it describes. All fields except checked and cache are
// immutable.
type laterImage struct {
	frames     symbol.JITSpan
	data       []byte // content of the section
	table      *cfi.Table
	start, end uint64
	code       []byte
	cache      unwind.CodeCache

	checked atomic.Int64 // when the process was last seen with this section and code, Unix time in ns
}

// Of returns an empty Later for a process. startTime has the meaning of process.Stat.StartTime.
func (s *LaterStore) Of(pid int, startTime uint64) *Later {
	l := &Later{store: s, pid: pid, startTime: startTime}
	l.read = symbolize.ProcessMemory(pid)
	l.maps = func() ([]process.Mapping, error) { return process.Maps(pid) }
	return l
}

// errCode means that an address is outside of the code that was read.
var errCode = errors.New("code that was not read")

// Code implements unwind.ImageCode.
func (i *laterImage) Code(addr, n uint64) ([]byte, error) {
	if off := addr - i.start; off < uint64(len(i.code)) && n <= uint64(len(i.code))-off {
		return i.code[off : off+n : off+n], nil
	}
	return nil, errCode
}

func (i *laterImage) covers(addr uint64) bool {
	if addr < i.start || addr >= i.end {
		return false
	}
	_, err := i.table.Find(addr)
	return err == nil
}

func (i *laterImage) size() int { return len(i.data) + len(i.code) }

// Start returns the address at which the most recent image that covers addr begins.
func (l *Later) Start(addr uint64) (start uint64, ok bool) {
	known := l.known(addr)
	if len(known) == 0 {
		return 0, false
	}
	return known[0].start, true
}

func (l *Later) known(addr uint64) (found []*laterImage) {
	if p := l.images.Load(); p != nil {
		for _, i := range *p {
			if i.covers(addr) {
				found = append(found, i)
			}
		}
	}
	return found
}

// At returns the candidates for the code at an address, the most recent first. If the parameter search is set, At also
// compares the candidates with the process, if the last look was longer ago than laterInterval. If the process has none
// of them, At searches for its code.
func (l *Later) At(addr uint64, search bool) []unwind.Candidate {
	found := l.known(addr)
	if now := time.Now(); search && len(found) > 0 && now.UnixNano()-l.wanted.Load() > (watchFor/2).Nanoseconds() {
		l.wanted.Store(now.UnixNano())
		l.store.watcher.want(l, now)
	}
	if search && !slices.ContainsFunc(found, l.current) {
		l.search(time.Now())
		found = l.known(addr)
	}
	list := make([]unwind.Candidate, len(found))
	for n, i := range found {
		list[n] = unwind.Candidate{
			Module: unwind.Module{CFI: i.table, Code: i, CodeCache: &i.cache}, Start: i.start, End: i.end,
		}
	}
	return list
}

// current reports whether the process has this image, or had it within laterInterval. During a pause, and if the
// process does not answer, it returns true.
func (l *Later) current(i *laterImage) bool {
	now := time.Now()
	if now.UnixNano()-i.checked.Load() < laterInterval.Nanoseconds() {
		return true
	}
	var same, answers bool
	if !l.store.look(func() {
		answers = process.WithTimeout(l.pid, func() { same = l.has(i) }, func() {})
	}) || !answers {
		return true // a search would fail too
	}
	if !same {
		l.store.next.Store(0) // the search may follow at once
		return false
	}
	i.checked.Store(now.UnixNano())
	return true
}

// has reports whether the process still has this image.
func (l *Later) has(i *laterImage) bool {
	frames, code := make([]byte, len(i.data)), make([]byte, len(i.code))
	return l.read.Exactly(i.frames.Start, frames) && bytes.Equal(frames, i.data) &&
		l.read.Exactly(i.start, code) && bytes.Equal(code, i.code)
}

// search reads the generated code that the process has now.
func (l *Later) search(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause := laterInterval
	if l.empty {
		pause = laterPause
	}
	if now.Sub(l.searched) < pause {
		return
	}
	var found []*laterImage
	var compiles, answers bool
	if !l.store.look(func() {
		answers = process.WithTimeout(l.pid, func() { found, compiles = l.readImages() }, func() {})
	}) {
		return
	}
	l.searched, l.empty = now, true
	if answers { // otherwise the goroutine of WithTimeout may still write found and compiles
		l.empty = !compiles
		l.keep(found, now)
	}
}

// readImages reads all .eh_frame sections in anonymous read-only memory that describe anonymous code. It returns none
// if the process has changed meanwhile. compiles reports whether the process has anonymous code or has loaded LLVM.
func (l *Later) readImages() (found []*laterImage, compiles bool) {
	maps, err := l.maps()
	if err != nil {
		return nil, false
	}
	if !slices.ContainsFunc(maps, func(m process.Mapping) bool { return anonymousCode(&m) }) {
		return nil, LoadsLLVM(maps)
	}
	p := JITProcess{Arch: l.store.Arch, Maps: maps}
	left, leftCode, mappings := uint64(maxSearched), uint64(maxLaterCode), maxMappings
	for i := range maps {
		m := &maps[i]
		if !readOnly(m) || m.End-m.Start > left || mappings == 0 {
			continue
		}
		data := make([]byte, m.End-m.Start)
		left, mappings = left-uint64(len(data)), mappings-1
		n, _ := l.read(m.Start, data)
		p.sections(m.Start, data[:max(n, 0)], func(at symbol.JITSpan, table *cfi.Table) {
			image := p.codeOf(table)
			if image == nil || image.end-image.start > leftCode {
				return
			}
			leftCode -= image.end - image.start
			image.frames, image.data = at, bytes.Clone(data[at.Start-m.Start:at.End-m.Start])
			image.table = frameTable(p.Arch, at.Start, image.data)
			image.code = make([]byte, image.end-image.start)
			if image.table != nil && l.read.Exactly(image.start, image.code) {
				found = append(found, image)
			}
		})
	}
	for _, i := range found { // the section must not have changed while the code was read
		again := make([]byte, len(i.data))
		if !l.read.Exactly(i.frames.Start, again) || !bytes.Equal(again, i.data) {
			return nil, true
		}
	}
	if stat, err := process.ReadStat(l.pid); err != nil || stat.StartTime != l.startTime {
		return nil, false
	}
	return found, true
}

// LoadsLLVM reports whether a process has loaded LLVM, or PostgreSQL's module that may contain it.
func LoadsLLVM(maps []process.Mapping) bool {
	return slices.ContainsFunc(maps, func(m process.Mapping) bool {
		name := path.Base(m.Path)
		return m.Perms&process.Exec != 0 && (strings.HasPrefix(name, "libLLVM") || strings.HasPrefix(name, "llvmjit"))
	})
}

// anonymousCode reports whether a mapping has code and no file.
func anonymousCode(m *process.Mapping) bool {
	return m.Inode == 0 && m.Path == "" && m.Perms&process.Exec != 0
}

// sections calls the callback found for each .eh_frame section in the data of a mapping.
func (p *JITProcess) sections(start uint64, data []byte, found func(at symbol.JITSpan, table *cfi.Table)) {
	for off := 0; off+maxCIE <= len(data); {
		rest := data[off:]
		if !startsCIE(p.Arch.Order, rest) {
			off += 8
			continue
		}
		n := sectionLength(p.Arch.Order, rest)
		if t := frameTable(p.Arch, start+uint64(off), rest[:n]); t != nil {
			found(symbol.JITSpan{Start: start + uint64(off), End: start + uint64(off+n)}, t)
		}
		off += max(8, n&^7)
	}
}

// codeOf returns an image with the limits of the code that a table describes, or nil if that code is not in anonymous
// memory.
func (p *JITProcess) codeOf(t *cfi.Table) *laterImage {
	var code *process.Mapping
	var image *laterImage
	for f := range t.FDEs {
		if code == nil {
			i := p.mapping(f.Start)
			if i < 0 || !anonymousCode(&p.Maps[i]) {
				return nil
			}
			code, image = &p.Maps[i], &laterImage{start: f.Start, end: f.End}
		}
		if f.Start >= code.Start && f.End <= code.End {
			image.start, image.end = min(image.start, f.Start), max(image.end, f.End)
		}
	}
	if image == nil || image.end > code.End || image.start >= image.end {
		return nil
	}
	return image
}

// keep adds images, and drops the oldest ones for which there is no room.
func (l *Later) keep(found []*laterImage, now time.Time) {
	var list []*laterImage
	if p := l.images.Load(); p != nil {
		list = slices.Clone(*p)
	}
	for _, i := range found {
		at := slices.IndexFunc(list, func(o *laterImage) bool {
			return o.frames == i.frames && o.start == i.start && bytes.Equal(o.data, i.data) && bytes.Equal(o.code, i.code)
		})
		if at >= 0 {
			i = list[at]
			list = slices.Delete(list, at, at+1)
		}
		i.checked.Store(now.UnixNano())
		list = slices.Insert(list, 0, i)
	}
	size := 0
	for n, i := range list {
		if size += i.size(); n >= maxLaterImages || size > maxLaterProcess {
			size -= i.size()
			list = list[:n]
			break
		}
	}
	l.images.Store(&list)
	l.store.account(l, size, now)
}

// account records the size of a Later. While all Laters together exceed maxLaterAll, it empties the one with the oldest
// search.
func (s *LaterStore) account(l *Later, size int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[*Later]struct{})
	}
	s.size += size - l.size
	l.size, l.used = size, now
	if size == 0 {
		delete(s.all, l)
	} else {
		s.all[l] = struct{}{}
	}
	for s.size > maxLaterAll {
		var oldest *Later
		for o := range s.all {
			if o != l && (oldest == nil || o.used.Before(oldest.used)) {
				oldest = o
			}
		}
		if oldest == nil {
			return
		}
		oldest.images.Store(nil)
		s.size -= oldest.size
		oldest.size = 0
		delete(s.all, oldest)
	}
}

// Drop forgets all images of a process that is no longer of interest.
func (s *LaterStore) Drop(l *Later) {
	l.images.Store(nil)
	s.account(l, 0, time.Time{})
}
