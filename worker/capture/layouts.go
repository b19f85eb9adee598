package capture

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind"
)

// maxLayouts bounds the processes whose mappings are remembered: about 10 kB each.
const maxLayouts = 1024

// layouts remembers the mappings of processes, which take longer to read than everything else of a capture together.
// What a capture uses of them is compared with the process every time: the mappings that its last walk went through
// before the process is stopped, those that are new to a walk after it.
type layouts struct {
	mu    sync.Mutex
	byKey map[processKey]*layout
	paths map[string]string // one copy of each
}

// layout is what is remembered of one process; all but kept is immutable once it is among the layouts.
type layout struct {
	layout *ptrace.MapsSnapshot
	maps   []procfs.Mapping
	used   []usage // the mappings that the last walk went through, in order

	kept atomic.Int64 // when the last capture that it served began, Unix time in ns
}

func newLayouts() *layouts {
	return &layouts{byKey: make(map[processKey]*layout), paths: make(map[string]string)}
}

func (l *layouts) find(key processKey) *layout {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byKey[key]
}

func (l *layouts) forget(key processKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byKey, key)
}

// keep remembers what a capture that began then has read, and which mappings its walks went through.
func (l *layouts) keep(key processKey, snap *ptrace.Snapshot, used []usage, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.byKey[key].kept.Store(began.UnixNano()) }()
	old := l.byKey[key]
	if old != nil && len(old.maps) > 0 && &old.maps[0] == &snap.Maps[0] {
		if !slices.Equal(old.used, used) {
			l.byKey[key] = &layout{layout: old.layout, maps: old.maps, used: used}
		}
		return
	}
	if old == nil && len(l.byKey) >= maxLayouts {
		for k := range l.byKey {
			delete(l.byKey, k)
			break
		}
	}
	maps := l.share(snap.Maps)
	l.byKey[key] = &layout{layout: snap.MapsSnapshot.WithMaps(maps), maps: maps, used: used}
}

// share copies mappings so that equal paths are the same string: those of a snapshot hold the whole text of its maps.
func (l *layouts) share(maps []procfs.Mapping) []procfs.Mapping {
	const most = 8192 // paths; servers have some dozens
	if len(l.paths) > most {
		clear(l.paths)
	}
	shared := slices.Clone(maps)
	for i := range shared {
		p, known := l.paths[shared[i].Path]
		if !known {
			p = strings.Clone(shared[i].Path)
			l.paths[p] = p
		}
		shared[i].Path = p
	}
	return shared
}

// usage is a mapping that frames of a walk lie in.
type usage struct {
	mapping int    // its index
	id      string // build-id of the image that it was taken for, "" if there is none
}

func byMapping(a, b usage) int { return cmp.Compare(a.mapping, b.mapping) }

// check compares what a capture goes by with the live process.
type check struct {
	pid  int
	file *procfs.MapsFile // nil: the kernel cannot be asked
	// before are the mappings that were compared before the stop.
	before []usage
}

func newCheck(pid int) check {
	if !looks.begin(pid) {
		return check{pid: pid}
	}
	defer looks.end(pid)
	file, err := procfs.OpenMaps(pid)
	if err != nil {
		return check{pid: pid} // why it cannot be opened is what the capture will say
	}
	return check{pid: pid, file: file}
}

func (c *check) close() {
	if c.file != nil {
		c.file.Close()
	}
}

// holdsSoon is holds for a process whose address space may be locked, by a thread that waits in the kernel: then
// nothing is known, and nothing is asked any more.
func (c *check) holdsSoon(l *layout, now time.Time) bool {
	if now.UnixNano()-l.kept.Load() < int64(justNow) {
		if !looks.begin(c.pid) {
			return false
		}
		defer looks.end(c.pid)
		return c.holds(l)
	}
	asking, ok := *c, false
	if withTimeout(c.pid, func() { ok = asking.holds(l) }, asking.close) {
		*c = asking
		return ok
	}
	c.file = nil // that goroutine has it
	return false
}

// justNow is for how long after a capture a process is taken for one that answers. To have a goroutine ask is slower,
// and wakes others up, which makes the pause longer.
const justNow = time.Second

// holds tells, before the stop, whether a layout still says what it did of the mappings that were used last.
func (c *check) holds(l *layout) bool {
	if c.file == nil {
		return false
	}
	for _, u := range l.used {
		if ok, err := c.same(&l.maps[u.mapping], u.id); !ok || err != nil {
			return false
		}
	}
	c.before = l.used
	return true
}

// unchanged compares the mappings that were not compared before the stop.
func (c *check) unchanged(maps []procfs.Mapping, used []usage) (bool, error) {
	if !looks.begin(c.pid) {
		return false, ptrace.ErrUnreachable
	}
	defer looks.end(c.pid)
	return c.unchangedNow(maps, used)
}

func (c *check) unchangedNow(maps []procfs.Mapping, used []usage) (bool, error) {
	for _, u := range used {
		if slices.Contains(c.before, u) {
			continue
		}
		if ok, err := c.same(&maps[u.mapping], u.id); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// same asks the process for one mapping. That it is of the same file is not enough: a file that was written over keeps
// its inode, but gets another build-id.
func (c *check) same(m *procfs.Mapping, id string) (bool, error) {
	if m.Path == "[vsyscall]" {
		return true, nil // is at its place in every process, and no mapping that could be asked for
	}
	var now procfs.Mapping
	var idNow string
	var err error
	if id == "" || m.Inode == 0 {
		now, err = c.file.At(m.Start)
	} else {
		now, idNow, err = c.file.ImageAt(m.Start)
	}
	switch {
	case errors.Is(err, procfs.ErrUnmapped):
		return false, nil
	case err != nil:
		return false, err
	}
	return now.SameMemory(m) && (idNow == "" || idNow == id), nil
}

// usedBy adds the mappings that frames lie in to a sorted set of them.
func (sp *space) usedBy(frames []unwind.Frame, used []usage) []usage {
	for i := range frames {
		m := sp.mapping(frames[i].Lookup())
		if m < 0 {
			continue
		}
		at, known := slices.BinarySearchFunc(used, usage{mapping: m}, byMapping)
		if known {
			continue
		}
		u := usage{mapping: m}
		if _, found, ok := sp.find(frames[i].Lookup()); ok && found.module != nil {
			u.id = found.module.image.BuildID()
		}
		used = slices.Insert(used, at, u)
	}
	return used
}

// sound tells, after the stop, whether walks that went by remembered mappings went right. All that a walk to the end
// of a stack believes are the mappings that its frames lie in, and so does one that was long enough; one that ended
// elsewhere may have ended because of what is not among the mappings.
func (c *check) sound(maps []procfs.Mapping, used []usage, trusted bool) (bool, error) {
	if !looks.begin(c.pid) {
		return false, ptrace.ErrUnreachable
	}
	defer looks.end(c.pid)
	if ok, err := c.unchangedNow(maps, used); !ok || err != nil || trusted {
		return ok, err
	}
	now, err := procfs.Maps(c.pid)
	if err != nil {
		return false, err
	}
	return slices.EqualFunc(maps, now, func(a, b procfs.Mapping) bool { return a.SameMemory(&b) }), nil
}

// stillSound tells whether what walks went by still is as it was, for all that can be asked. Of a process that has just
// ended nothing can; nor can one be asked by a descriptor for the mappings of the program that it executed before.
func (c *check) stillSound(maps []procfs.Mapping, used []usage, trusted bool) bool {
	for range 2 {
		if c.file == nil {
			return false
		}
		ok, err := c.sound(maps, used, trusted)
		if err == nil {
			return ok
		}
		c.close()
		*c = newCheck(c.pid)
	}
	return c.file != nil
}
