package symbolize

import (
	"bytes"
	"debug/elf"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/elfimage"
)

// A program may move its code to huge pages, to reduce TLB misses. Node.js does so with --use-largepages, and some
// libraries do so when they are linked or preloaded. The code keeps its address. It is then in anonymous or hugetlbfs
// memory, between the remaining mappings of its own file.

const (
	maxBetween    = 256     // mappings to search on each side for the file's own
	comparedChunk = 1 << 20 // bytes that are compared at a time
)

// moved returns the image whose code the process has moved to maps[i]. All of the code must be equal to the image's
// file, because the mapping may have different content.
func (c *Cache) moved(pid int, maps []procfs.Mapping, i int) Placed {
	if maps[i].Perms&procfs.Write != 0 {
		return Placed{} // a writable mapping may change after the comparison
	}
	below, above := nearestFile(maps, i, -1), nearestFile(maps, i, +1)
	if below < 0 || above < 0 || !sameFile(&maps[below], &maps[above]) {
		return Placed{}
	}
	base, ok := baseMapping(maps, below)
	if !ok {
		return Placed{}
	}
	mod := c.find(pid, maps, below)
	if mod == nil || mod.Path == "" { // it was read from the process's memory, so a comparison proves nothing
		return Placed{}
	}
	bias, ok := mod.Image.Bias(base.Start, base.Offset)
	if !ok || !sameCode(ProcessMemory(pid), mod.Image, &maps[i], bias) {
		return Placed{}
	}
	return Placed{Module: mod, Bias: bias, Name: ModuleName(base.Path)}
}

// nearestFile returns the index of the nearest mapping below (step -1) or above (+1) maps[i] that belongs to another
// file. It returns -1 if there is none nearby.
func nearestFile(maps []procfs.Mapping, i, step int) int {
	for j, n := i+step, 0; j >= 0 && j < len(maps) && n < maxBetween; j, n = j+step, n+1 {
		if m := &maps[j]; m.Inode != 0 && !sameFile(m, &maps[i]) {
			return j
		}
	}
	return -1
}

// sameFile reports whether two mappings belong to the same file.
func sameFile(a, b *procfs.Mapping) bool {
	return a.Inode == b.Inode && a.Major == b.Major && a.Minor == b.Minor
}

// sameCode reports whether the mapping has code of the image, and memory and file have the same bytes.
func sameCode(memory MemoryReader, img *elfimage.Image, m *procfs.Mapping, bias uint64) bool {
	some := false
	for _, s := range img.Segments() {
		start, end := max(m.Start, s.Vaddr+bias), min(m.End, s.Vaddr+bias+s.Filesz)
		if s.Flags&elf.PF_X == 0 || start >= end {
			continue
		}
		some = true
		for at := start; at < end; at += comparedChunk {
			n := min(end-at, comparedChunk)
			code, err := img.Code(at-bias, n)
			loaded := make([]byte, n)
			if err != nil || !memory.Exactly(at, loaded) || !bytes.Equal(code, loaded) {
				return false
			}
		}
	}
	return some
}
