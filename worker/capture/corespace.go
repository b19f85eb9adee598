package capture

import (
	"cmp"
	"slices"
	"sort"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// space is a naming.Space that reads code from the core and from the files of its images.
type space struct {
	*naming.Space

	mem *corefile.Memory
}

// Code implements unwind.Code: it reads the core and the files of its images.
func (s space) Code(addr uint64, p []byte) bool { return s.mem.Bytes(addr, p) }

// space returns the address space of the core. It combines three lists of mappings: the segments of the images, the
// files that the core lists, and the core's memory ranges. Where mappings overlap, the first of these lists is used, because
// an image has the exact limits of its code. space also returns which memory is in the images' files.
func (r *reader) space() (*naming.Space, []corefile.Backing) {
	maps, known, backing := r.imageMappings()
	maps = overlay(maps, r.fileMappings())
	maps = overlay(maps, r.memoryMappings())
	for _, m := range maps {
		if _, ok := known[m]; !ok {
			known[m] = symbolize.Placed{} // without an image; this entry prevents a look-up
		}
	}
	sp := naming.NewCache(r.images).Open(r.core.Process.PID, 0, maps)
	sp.Known, sp.Generated.SameMoment = known, r.core.ReadAt
	return sp, backing
}

// imageMappings returns the segments of the loaded images as mappings, the image of each mapping, and the parts that
// are in files.
func (r *reader) imageMappings() ([]process.Mapping, map[process.Mapping]symbolize.Placed, []corefile.Backing) {
	var maps []process.Mapping
	var backing []corefile.Backing
	known := make(map[process.Mapping]symbolize.Placed)
	for i := range r.loaded {
		c := &r.loaded[i]
		for _, s := range c.module.Image.Segments() {
			start, end := s.Vaddr+c.bias, s.Vaddr+c.bias+s.Memsz
			if start >= end {
				continue
			}
			m := process.Mapping{
				Start: start, End: end, Perms: naming.PermsOf(s.Flags), Offset: s.Offset, Inode: 1, Path: c.module.Name,
			}
			maps = append(maps, m)
			known[m] = symbolize.Placed{Module: c.module, Bias: c.bias, Name: symbolize.ModuleName(m.Path)}
			if c.file != nil {
				backing = append(backing, corefile.Backing{
					Start: start, End: start + min(s.Filesz, s.Memsz), Offset: s.Offset, File: c.file,
				})
			}
		}
	}
	return overlay(nil, maps), known, backing
}

// fileMappings lists the files of the core's note NT_FILE. The note has no permissions, so they come from the core's
// memory ranges. A file without a memory range, as in cores of gcore, is treated as readable and executable.
func (r *reader) fileMappings() []process.Mapping {
	maps := make([]process.Mapping, 0, len(r.core.Files))
	for _, f := range r.core.Files {
		perms := process.Read | process.Exec
		if flags, ok := r.core.Flags(f.Start); ok {
			perms = naming.PermsOf(flags)
		}
		maps = append(maps, process.Mapping{
			Start: f.Start, End: f.End, Perms: perms, Offset: f.Offset, Inode: 1, Path: f.Path,
		})
	}
	return maps
}

// memoryMappings lists the core's memory ranges.
func (r *reader) memoryMappings() []process.Mapping {
	maps := make([]process.Mapping, 0, len(r.core.Segments))
	for i := range r.core.Segments {
		s := &r.core.Segments[i]
		maps = append(maps, process.Mapping{Start: s.Vaddr, End: s.Vaddr + s.Memsz, Perms: naming.PermsOf(s.Flags)})
	}
	return maps
}

// overlay returns the mappings of base, and the parts of the mappings in more that lie outside base. base must be
// sorted, and its mappings must not overlap.
func overlay(base, more []process.Mapping) []process.Mapping {
	more = slices.Clone(more)
	sort.SliceStable(more, func(i, j int) bool {
		a, b := more[i], more[j]
		return cmp.Compare(a.Start, b.Start) < 0
	})
	out := make([]process.Mapping, 0, len(base)+len(more))
	end := uint64(0) // highest end of the parts of more that are in out
	i := 0
	for _, m := range more {
		m = clip(m, end)
		for m.Start < m.End {
			for i < len(base) && base[i].End <= m.Start {
				out = append(out, base[i])
				i++
			}
			part := m
			if i < len(base) && base[i].Start < m.End {
				part.End = max(base[i].Start, m.Start)
				m = clip(m, base[i].End)
			} else {
				m.Start = m.End
			}
			if part.Start < part.End {
				out = append(out, part)
			}
			end = max(end, part.End)
		}
	}
	return append(out, base[i:]...)
}

// clip cuts off the part of a mapping below an address.
func clip(m process.Mapping, start uint64) process.Mapping {
	if m.Start < start {
		m.Offset += start - m.Start
		m.Start = start
	}
	return m
}
