package procmap

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind"
)

// Usage is a mapping that frames of a walk lie in.
type Usage struct {
	Mapping int    // its index
	id      string // build-id of the image that it was taken for, "" if there is none
}

func byMapping(a, b Usage) int { return cmp.Compare(a.Mapping, b.Mapping) }

// Check compares what a capture goes by with the live process.
type Check struct {
	PID  int
	File *procfs.MapsFile // nil: the kernel cannot be asked
	// Before are the mappings that were compared before the stop.
	Before []Usage
}

// NewCheck opens the mappings of a process. The Check must be closed.
func NewCheck(pid int) Check {
	if !Guard.Begin(pid) {
		return Check{PID: pid}
	}
	defer Guard.End(pid)
	file, err := procfs.OpenMaps(pid)
	if err != nil {
		return Check{PID: pid} // why it cannot be opened is what the capture will say
	}
	return Check{PID: pid, File: file}
}

// Close closes the mappings.
func (c *Check) Close() {
	if c.File != nil {
		c.File.Close()
	}
}

// HoldsSoon is holds for a process whose address space may be locked, by a thread that waits in the kernel: then
// nothing is known, and nothing is asked any more.
func (c *Check) HoldsSoon(l *KnownMaps, now time.Time) bool {
	if now.UnixNano()-l.kept.Load() < int64(justNow) {
		if !Guard.Begin(c.PID) {
			return false
		}
		defer Guard.End(c.PID)
		return c.holds(l)
	}
	asking, ok := *c, false
	if WithTimeout(c.PID, func() { ok = asking.holds(l) }, asking.Close) {
		*c = asking
		return ok
	}
	c.File = nil // that goroutine has it
	return false
}

// justNow is for how long after a capture a process is taken for one that answers. To have a goroutine ask is slower,
// and wakes others up, which makes the pause longer.
const justNow = time.Second

// holds tells, before the stop, whether a layout still says what it did of the mappings that were used last.
func (c *Check) holds(l *KnownMaps) bool {
	if c.File == nil {
		return false
	}
	for _, u := range l.used {
		if ok, err := c.same(&l.maps[u.Mapping], u.id); !ok || err != nil {
			return false
		}
	}
	c.Before = l.used
	return true
}

// Unchanged compares the mappings that were not compared before the stop.
func (c *Check) Unchanged(maps []procfs.Mapping, used []Usage) (bool, error) {
	if !Guard.Begin(c.PID) {
		return false, ptrace.ErrUnreachable
	}
	defer Guard.End(c.PID)
	return c.unchangedNow(maps, used)
}

func (c *Check) unchangedNow(maps []procfs.Mapping, used []Usage) (bool, error) {
	for _, u := range used {
		if slices.Contains(c.Before, u) {
			continue
		}
		if ok, err := c.same(&maps[u.Mapping], u.id); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// same asks the process for one mapping. That it is of the same file is not enough: a file that was written over keeps
// its inode, but gets another build-id.
func (c *Check) same(m *procfs.Mapping, id string) (bool, error) {
	if m.Path == "[vsyscall]" {
		return true, nil // is at its place in every process, and no mapping that could be asked for
	}
	var now procfs.Mapping
	var idNow string
	var err error
	if id == "" || m.Inode == 0 {
		now, err = c.File.At(m.Start)
	} else {
		now, idNow, err = c.File.ImageAt(m.Start)
	}
	switch {
	case errors.Is(err, procfs.ErrUnmapped):
		return false, nil
	case err != nil:
		return false, err
	}
	return now.SameMemory(m) && (idNow == "" || idNow == id), nil
}

// UsedBy adds the mappings that frames lie in to a sorted set of them.
func (sp *Space) UsedBy(frames []unwind.Frame, used []Usage) []Usage {
	for i := range frames {
		m := sp.Mapping(frames[i].Lookup())
		if m < 0 {
			continue
		}
		at, known := slices.BinarySearchFunc(used, Usage{Mapping: m}, byMapping)
		if known {
			continue
		}
		u := Usage{Mapping: m}
		if _, found, ok := sp.Lookup(frames[i].Lookup()); ok && found.Module != nil {
			u.id = found.Module.Image.BuildID()
		}
		used = slices.Insert(used, at, u)
	}
	return used
}

// Sound tells, after the stop, whether walks that went by remembered mappings went right. All that a walk to the end
// of a stack believes are the mappings that its frames lie in, and so does one that was long enough; one that ended
// elsewhere may have ended because of what is not among the mappings.
func (c *Check) Sound(maps []procfs.Mapping, used []Usage, trusted bool) (bool, error) {
	if !Guard.Begin(c.PID) {
		return false, ptrace.ErrUnreachable
	}
	defer Guard.End(c.PID)
	if ok, err := c.unchangedNow(maps, used); !ok || err != nil || trusted {
		return ok, err
	}
	now, err := procfs.Maps(c.PID)
	if err != nil {
		return false, err
	}
	return slices.EqualFunc(maps, now, func(a, b procfs.Mapping) bool { return a.SameMemory(&b) }), nil
}

// StillSound tells whether what walks went by still is as it was, for all that can be asked. Of a process that has just
// ended nothing can; nor can one be asked by a descriptor for the mappings of the program that it executed before.
func (c *Check) StillSound(maps []procfs.Mapping, used []Usage, trusted bool) bool {
	for range 2 {
		if c.File == nil {
			return false
		}
		ok, err := c.Sound(maps, used, trusted)
		if err == nil {
			return ok
		}
		c.Close()
		*c = NewCheck(c.PID)
	}
	return c.File != nil
}
