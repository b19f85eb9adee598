package symbolize

import (
	"bytes"
	"debug/elf"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/elfimage"
)

// A program may move its code to huge pages, for which the processor looks up fewer addresses (Node.js with
// --use-largepages, and what is linked or preloaded for that): the code is at the same place as before, in memory
// without a file, or with one of hugetlbfs, between what is left of its own file's mappings.

const (
	maxBetween    = 256     // mappings that such code is looked for between its file's
	comparedChunk = 1 << 20 // bytes that are compared at a time
)

// moved returns the image whose code the process has moved to maps[i]. It is that image's only if all of it is what
// the image's file has there: anything else may lie there as well.
func (c *Cache) moved(pid int, maps []procfs.Mapping, i int) Placed {
	if maps[i].Perms&procfs.Write != 0 {
		return Placed{} // what was compared may be something else a moment later
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
	if mod == nil || mod.Path == "" { // from the process's memory: that is the same anyway
		return Placed{}
	}
	bias, ok := mod.Image.Bias(base.Start, base.Offset)
	if !ok || !sameCode(ProcessMemory(pid), mod.Image, &maps[i], bias) {
		return Placed{}
	}
	return Placed{Module: mod, Bias: bias, Name: ModuleName(base.Path)}
}

// nearestFile returns the index of the nearest mapping below (step -1) or above (+1) maps[i] that has a file, and not
// its; -1 if there is none nearby.
func nearestFile(maps []procfs.Mapping, i, step int) int {
	for j, n := i+step, 0; j >= 0 && j < len(maps) && n < maxBetween; j, n = j+step, n+1 {
		if m := &maps[j]; m.Inode != 0 && !sameFile(m, &maps[i]) {
			return j
		}
	}
	return -1
}

// sameFile tells whether two mappings are of one file.
func sameFile(a, b *procfs.Mapping) bool {
	return a.Inode == b.Inode && a.Major == b.Major && a.Minor == b.Minor
}

// sameCode tells whether there is code of the image in a mapping, and memory has all of it as the image's file does.
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
