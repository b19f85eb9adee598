package symbolize

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path"
	"strings"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
)

// A program may move its code to huge pages, to reduce TLB misses. Node.js moves it with --use-largepages, and some
// libraries do when they are linked or preloaded. The code keeps its address. It is then in anonymous memory or in a
// file of hugetlbfs or tmpfs, between the remaining mappings of the program's file. The ELF header may have moved with
// the code. libhugetlbfs can move everything, and then no mapping of the program's file is left.

const (
	maxBetween    = 256     // mappings to search on each side for a mapping of the image's file
	maxNeighbours = 4       // files to try on each side
	comparedChunk = 1 << 20 // bytes that are compared at a time
)

// moved returns the image whose code the process has moved to maps[i], or a Placed without a module. All code in
// maps[i] must be equal to the code in the image's file.
func (c *Cache) moved(pid int, maps []process.Mapping, i int) Placed {
	if maps[i].Perms&process.Write != 0 {
		return Placed{} // a writable mapping may change after the comparison
	}
	memory := ProcessMemory(pid)
	for _, j := range neighbours(maps, i) {
		f := c.ofMapping(pid, maps, j)
		// An image that was read from the process's memory would be compared with itself.
		if f.Module == nil || f.Module.Path == "" || !sameCode(memory, f.Module.Image, &maps[i], f.Bias) {
			continue
		}
		if !f.Moved { // if set, the neighbour is the mapping of a moved ELF header
			f.Moved, f.Origin = true, maps[j]
		}
		return f
	}
	if f := c.unmapped(pid, maps); f.Module != nil && sameCode(memory, f.Module.Image, &maps[i], f.Bias) {
		return f
	}
	return Placed{}
}

// neighbours returns the indexes of the nearest mappings of other files below and above maps[i], the nearest first.
func neighbours(maps []process.Mapping, i int) []int {
	var found []int
	seen := func(m *process.Mapping) bool {
		if m.Inode == 0 || sameFile(m, &maps[i]) {
			return true
		}
		for _, j := range found {
			if sameFile(m, &maps[j]) {
				return true
			}
		}
		return false
	}
	for distance := 1; distance <= maxBetween && len(found) < 2*maxNeighbours; distance++ {
		for _, j := range []int{i - distance, i + distance} {
			if j >= 0 && j < len(maps) && !seen(&maps[j]) {
				found = append(found, j)
			}
		}
	}
	return found
}

// ofMapping returns the image of a file's mapping, even if no mapping of the file has the ELF header any more. Package
// elfimage identifies the segment by the position in the file.
func (c *Cache) ofMapping(pid int, maps []process.Mapping, j int) Placed {
	base, ok := baseMapping(maps, j)
	if !ok {
		return c.headless(pid, &maps[j])
	}
	mod := c.find(pid, maps, j)
	if mod == nil {
		return Placed{}
	}
	var bias uint64
	if base.Perms&process.Exec != 0 {
		bias, ok = mod.Image.Bias(base.Start, base.Offset)
	} else { // the code may begin in the same page of the file, but its mapping is another one
		var header uint64
		header, ok = mod.Image.Header()
		bias = base.Start - header
	}
	if !ok {
		return Placed{}
	}
	f := Placed{Module: mod, Bias: bias, Name: ModuleName(base.Path)}
	c.checkFile(pid, maps, j, &f)
	return f
}

// headless returns the image of a file whose mappings do not contain its ELF header. Other memory at the address of the
// header must have a header of the same build (see loadedAt).
func (c *Cache) headless(pid int, m *process.Mapping) Placed {
	if m.Inode == 0 {
		return Placed{}
	}
	for _, open := range candidates(pid, m, m) {
		f, st, err := open.File()
		if err != nil {
			continue
		}
		img, err := elfimage.Open(f, path.Base(m.Path))
		if err == nil {
			bias, ok := img.Bias(m.Start, m.Offset)
			if ok && loadedAt(pid, img, bias, st.matches(m)) {
				mod := c.adoptFile(pid, f, st, img, m, img.BuildID())
				if mod == nil {
					return Placed{}
				}
				return Placed{Module: mod, Bias: bias, Name: ModuleName(m.Path)}
			}
		}
		_ = f.Close()
	}
	return Placed{}
}

// loadedAt reports whether a process has an image at a load bias, by the build-id in memory. For an image without a
// build-id it returns the parameter sameFile: the caller knows whether the image's file is the mapped file.
func loadedAt(pid int, img *elfimage.Image, bias uint64, sameFile bool) bool {
	header, ok := img.Header()
	if !ok {
		return false
	}
	inMemory, err := elfimage.FromMemory(ProcessMemory(pid), bias+header, img.Name())
	if err != nil || inMemory.BuildID() != img.BuildID() {
		return false
	}
	return img.BuildID() != "" || sameFile
}

// movedHeader returns the module of an image whose ELF header is not in the image's file any more, but in the memory at
// base. It also returns a mapping of the image's file. It tries the files of the image's other mappings, and the
// program's file. The file must have the build-id of the header in memory.
func (c *Cache) movedHeader(
	pid int, maps []process.Mapping, base *process.Mapping, inMemory *elfimage.Image,
) (*Module, process.Mapping) {
	id := inMemory.BuildID()
	header, ok := inMemory.Header()
	if id == "" || !ok {
		return nil, process.Mapping{}
	}
	low, high := inMemory.AddrRange()
	bias := base.Start - header
	for j := range maps {
		m := &maps[j]
		if m.Inode == 0 || sameFile(m, base) || m.Start < low+bias || m.Start >= high+bias {
			continue
		}
		for _, open := range candidates(pid, m, m) {
			if found := c.fromFile(pid, open, m, id); found != nil {
				return found, *m
			}
		}
	}
	m, ok := programLink(pid)
	if !ok || m.Path == base.Path {
		return nil, process.Mapping{}
	}
	return c.fromFile(pid, Candidate(ProcFolder(pid)+"/exe"), &m, id), m
}

// checkFile sets f.Moved if maps[i] has the image's ELF header but is a mapping of another file. Such a file has the
// image's build-id too, but it is no complete image.
func (c *Cache) checkFile(pid int, maps []process.Mapping, i int, f *Placed) {
	base, ok := baseMapping(maps, i)
	if !ok || base.Inode == 0 || f.Module.Path == "" || f.Module.Path == insideRoot(pid, base.Path) {
		return
	}
	for _, open := range candidates(pid, &base, &maps[i]) {
		file, _, err := open.File()
		if err != nil {
			continue
		}
		img, err := elfimage.Open(file, f.Name)
		same := err == nil && img.BuildID() == f.Module.Image.BuildID()
		_ = file.Close()
		if same {
			return // the same image at another path
		}
	}
	if m, origin := c.movedHeader(pid, maps, &base, f.Module.Image); m != nil {
		f.Moved, f.Origin, f.Name = true, origin, ModuleName(origin.Path)
	}
}

// programLink returns the path, device and inode of a process's program, from /proc/PID/exe. It returns false if it
// cannot read this link.
func programLink(pid int) (process.Mapping, bool) {
	exe, err := os.Readlink(ProcFolder(pid) + "/exe")
	if err != nil {
		return process.Mapping{}, false
	}
	file, deleted := strings.CutSuffix(exe, " (deleted)")
	m := process.Mapping{Path: file, Deleted: deleted}
	if f, st, err := Candidate(ProcFolder(pid) + "/exe").File(); err == nil {
		m.Inode, m.Major, m.Minor = st.ino, devMajor(st.dev), devMinor(st.dev)
		_ = f.Close()
	}
	return m, true
}

// unmapped returns the program of a process that has no mapping of the program's file left. /proc/PID/exe leads to the
// file, and the auxiliary vector has the address at which the program began.
func (c *Cache) unmapped(pid int, maps []process.Mapping) Placed {
	m, ok := programLink(pid)
	if !ok {
		return Placed{}
	}
	for i := range maps {
		if maps[i].Path == m.Path {
			return Placed{}
		}
	}
	f, st, err := Candidate(ProcFolder(pid) + "/exe").File()
	if err != nil {
		return Placed{}
	}
	img, err := elfimage.Open(f, path.Base(m.Path))
	if err == nil {
		entry := auxiliary(pid)[atEntry]
		bias := entry - img.Entry()
		if entry != 0 && bias&0xfff == 0 && loadedAt(pid, img, bias, true) {
			mod := c.adoptFile(pid, f, st, img, &m, img.BuildID())
			if mod == nil {
				return Placed{}
			}
			return Placed{Module: mod, Bias: bias, Name: ModuleName(m.Path), Moved: true, Origin: m}
		}
	}
	_ = f.Close()
	return Placed{}
}

// atEntry is the tag of the program's entry in the auxiliary vector (getauxval(3)).
const atEntry = 9

// auxiliary reads the auxiliary vector that the kernel gave a program: pairs of a tag and a value, up to the tag 0. The
// map is empty if it cannot be read.
func auxiliary(pid int) map[uint64]uint64 {
	const pair = 16
	vector := make(map[uint64]uint64)
	data, err := os.ReadFile(ProcFolder(pid) + "/auxv")
	if err != nil {
		return vector
	}
	for ; len(data) >= pair; data = data[pair:] {
		tag := binary.NativeEndian.Uint64(data)
		if tag == 0 {
			break
		}
		vector[tag] = binary.NativeEndian.Uint64(data[pair/2:])
	}
	return vector
}

// sameFile reports whether two mappings belong to the same file.
func sameFile(a, b *process.Mapping) bool {
	return a.Inode == b.Inode && a.Major == b.Major && a.Minor == b.Minor
}

// sameCode reports whether the mapping has code of the image, and all this code has the same bytes in memory and in the
// file.
func sameCode(memory MemoryReader, img *elfimage.Image, m *process.Mapping, bias uint64) bool {
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
