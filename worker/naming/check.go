package naming

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind"
)

// Usage is a mapping in which a walk had frames.
type Usage struct {
	Mapping int    // index in the list of the process's mappings
	id      string // build-id of the image in the mapping; "" if there is none
}

func byMapping(a, b Usage) int { return cmp.Compare(a.Mapping, b.Mapping) }

// Check compares the mappings that a capture uses with the live process.
type Check struct {
	PID  int
	File *process.MapsFile // nil: it could not be opened
	// Before has the mappings that were compared before the process was stopped.
	Before []Usage
}

// NewCheck opens the maps file of a process. If that fails, File is nil. The caller must close the Check.
func NewCheck(pid int) Check {
	if !process.Guard.Begin(pid) {
		return Check{PID: pid}
	}
	defer process.Guard.End(pid)
	file, err := process.OpenMaps(pid)
	if err != nil {
		return Check{PID: pid} // the capture will report the error
	}
	return Check{PID: pid, File: file}
}

// Close closes the maps file.
func (c *Check) Close() {
	if c.File != nil {
		c.File.Close()
	}
}

// UnchangedWithTimeout is lastUsedUnchanged with a timeout, because a thread in the kernel may keep the address space of the
// process locked. After the timeout it returns false, and the Check does not query the process again.
func (c *Check) UnchangedWithTimeout(l *KnownMaps, now time.Time) bool {
	if now.UnixNano()-l.kept.Load() < int64(responsivePeriod) {
		if !process.Guard.Begin(c.PID) {
			return false
		}
		defer process.Guard.End(c.PID)
		return c.lastUsedUnchanged(l)
	}
	asking, ok := *c, false
	if process.WithTimeout(c.PID, func() { ok = asking.lastUsedUnchanged(l) }, asking.Close) {
		*c = asking
		return ok
	}
	c.File = nil // the goroutine of WithTimeout still uses the file
	return false
}

// responsivePeriod is how long after a capture a process is queried without a timeout. A timeout needs another
// goroutine. That is slower and wakes further threads, so the pause is longer.
const responsivePeriod = time.Second

// lastUsedUnchanged reports, before the process is stopped, whether it still has the mappings that the last walk used. If so,
// it stores them in Before.
func (c *Check) lastUsedUnchanged(l *KnownMaps) bool {
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

// unchangedNow reports whether the process still has those of the mappings in maps that used selects. It skips the mappings in
// c.Before.
func (c *Check) unchangedNow(maps []process.Mapping, used []Usage) (bool, error) {
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

// same reports whether the process still has the mapping m. If id is not empty, the image in the mapping must also have
// this build-id. The same file is not enough: a file that was overwritten keeps its inode, but its build-id changes.
func (c *Check) same(m *process.Mapping, id string) (bool, error) {
	if m.Path == "[vsyscall]" {
		return true, nil // it has the same address in every process, and the kernel has no mapping for it
	}
	var now process.Mapping
	var idNow string
	var err error
	if id == "" || m.Inode == 0 {
		now, err = c.File.At(m.Start)
	} else {
		now, idNow, err = c.File.ImageAt(m.Start)
	}
	switch {
	case errors.Is(err, process.ErrUnmapped):
		return false, nil
	case err != nil:
		return false, err
	}
	return now.SameMemory(m) && (idNow == "" || idNow == id), nil
}

// UsedBy adds the mappings in which the frames lie to the list used, which is sorted by index, and returns the list.
func (sp *Space) UsedBy(frames []unwind.Frame, used []Usage) []Usage {
	for i := range frames {
		m := sp.Mapping(frames[i].Lookup())
		if m < 0 || sp.samples && !sp.inFile(frames[i].Lookup()) { // package unwind verifies generated code in samples
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

// StillMapped reports, after the stop, whether walks that used the mappings in maps are correct. The parameter trusted is set if
// no walk ended for a reason that other mappings could change. Then only the mappings of the frames (used) matter. Otherwise a
// walk may have ended because of a missing mapping, so StillMapped compares all mappings.
func (c *Check) StillMapped(maps []process.Mapping, used []Usage, trusted bool) (bool, error) {
	if !process.Guard.Begin(c.PID) {
		return false, process.ErrUnreachable
	}
	defer process.Guard.End(c.PID)
	if ok, err := c.unchangedNow(maps, used); !ok || err != nil || trusted {
		return ok, err
	}
	now, err := process.Maps(c.PID)
	if err != nil {
		return false, err
	}
	return slices.EqualFunc(maps, now, func(a, b process.Mapping) bool { return a.SameMemory(&b) }), nil
}

// StillMappedRetry is StillMapped for a process that may have ended or executed another program meanwhile. After an
// error it opens the maps file again and repeats the check, because the old file is useless after an exec. If the
// process still cannot be checked, it returns true only if its maps file could be opened.
func (c *Check) StillMappedRetry(maps []process.Mapping, used []Usage, trusted bool) bool {
	for range 2 {
		if c.File == nil {
			return false
		}
		ok, err := c.StillMapped(maps, used, trusted)
		if err == nil {
			return ok
		}
		c.Close()
		*c = NewCheck(c.PID)
	}
	return c.File != nil
}
