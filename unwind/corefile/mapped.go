package corefile

import (
	"bytes"
	"debug/elf"
	"path"
	"slices"
	"sort"
	"strings"

	"pg_stat_backtrace/unwind/elfimage"
)

// Entries of the auxiliary vector (<elf.h>).
const (
	atPHDR        = 3
	atPHNUM       = 5
	atBASE        = 7
	atENTRY       = 9
	atEXECFN      = 31
	atSYSINFOEHDR = 33
)

// maxLinks bounds the entries of the dynamic linker's list, maxPath the bytes of the paths in it.
const (
	maxLinks = 4096
	maxPath  = 4096
)

// Mapped is an image that the process had mapped.
type Mapped struct {
	// Path is the file's path as the process had it, and "[vdso]" for the kernel's vDSO. It is "" for the program if
	// the core has no NT_FILE and does not contain the program's path.
	Path string
	// Exe is set for the program itself.
	Exe bool
	// Files are the file's mappings, if the core has NT_FILE. Otherwise Bias comes from the dynamic linker's list.
	Files []File
	// Bias is the load bias, run-time minus link-time address, if HasBias is set.
	Bias    uint64
	HasBias bool
	// Header is the address of the ELF header, 0 if unknown.
	Header uint64
}

// BuildID returns the image's build-id in the core's memory. It is "" if the core does not contain it, for example
// because the core omits the first page of files.
func (c *Core) BuildID(m *Mapped) string {
	if img := c.Image(m); img != nil {
		return img.BuildID()
	}
	return ""
}

// Image reads the image from the core's memory. It returns nil if the image's header is missing.
func (c *Core) Image(m *Mapped) *elfimage.Image {
	if m.Header == 0 {
		return nil
	}
	img, err := elfimage.FromMemory(c.ReadAt, m.Header, path.Base(m.Path))
	if err != nil {
		return nil
	}
	return img
}

// Mapped lists the images that the core's notes name: the program, the files in NT_FILE by address, and the vDSO. With
// NT_FILE, the program is among the files. Otherwise the program comes first, without a bias, and Linked finds the
// libraries.
func (c *Core) Mapped() []Mapped {
	list := c.mappedFiles()
	if !slices.ContainsFunc(list, func(m Mapped) bool { return m.Exe }) {
		list = append([]Mapped{{Exe: true, Path: c.execPath()}}, list...)
	}
	if base, ok := c.auxv[atSYSINFOEHDR]; ok && base != 0 {
		list = append(list, Mapped{Path: "[vdso]", Header: base})
	}
	return list
}

// mappedFiles groups the mappings in NT_FILE by image. An image begins where offset 0 of its file is mapped.
func (c *Core) mappedFiles() []Mapped {
	var list []Mapped
	last := make(map[string]int) // the index of the last image of a path
	for _, f := range c.Files {
		if f.Offset == 0 {
			last[f.Path] = len(list)
			list = append(list, Mapped{Path: f.Path, Header: f.Start, Files: []File{f}})
			continue
		}
		if i, ok := last[f.Path]; ok {
			list[i].Files = append(list[i].Files, f)
		}
	}
	phdr, ok := c.auxv[atPHDR]
	for i := range list {
		for _, f := range list[i].Files {
			list[i].Exe = list[i].Exe || ok && phdr >= f.Start && phdr < f.End
		}
	}
	return slices.DeleteFunc(list, func(m Mapped) bool { return !c.executable(&m) })
}

// executable reports whether a mapping of an image may contain code. A mapping without a memory range in the core may
// contain code, because gcore does not list the ranges that it omits.
func (c *Core) executable(m *Mapped) bool {
	return slices.ContainsFunc(m.Files, func(f File) bool {
		i := c.segmentAt(f.Start)
		return i < 0 || c.Segments[i].Flags&elf.PF_X != 0
	})
}

// Flags returns the access rights (PF_R, PF_W, PF_X) of the memory range that contains an address. The result is false
// if the core lists no such range.
func (c *Core) Flags(addr uint64) (elf.ProgFlag, bool) {
	i := c.segmentAt(addr)
	if i < 0 {
		return 0, false
	}
	return c.Segments[i].Flags, true
}

// mapped reports whether the process had a mapping at an address. If code is set, the mapping must be executable. Data
// may be executable, too: with READ_IMPLIES_EXEC (personality(2)), all readable memory of a process is.
func (c *Core) mapped(addr uint64, code bool) bool {
	if i := c.segmentAt(addr); i >= 0 {
		return !code || c.Segments[i].Flags&elf.PF_X != 0
	}
	i := sort.Search(len(c.Files), func(i int) bool { return c.Files[i].Start > addr }) - 1
	return i >= 0 && addr < c.Files[i].End
}

// execPath returns the path with which the program was started (AT_EXECFN); "" if it is unknown.
func (c *Core) execPath() string {
	addr, ok := c.auxv[atEXECFN]
	if !ok {
		return ""
	}
	return c.cstring(addr)
}

// cstring reads a path at an address. It returns "" if the core does not contain the whole path.
func (c *Core) cstring(addr uint64) string {
	var buf [maxPath]byte
	n, _ := c.ReadAt(addr, buf[:])
	i := bytes.IndexByte(buf[:n], 0)
	if i < 0 {
		return ""
	}
	return string(buf[:i])
}

// Linked lists the libraries in the dynamic linker's list (struct r_debug, struct link_map of <link.h>). An entry in
// the program's dynamic segment points to this list. exe is the program's image and bias its load bias. The list is
// empty for a static program, or if the core lacks the memory.
func (c *Core) Linked(exe *elfimage.Image, bias uint64) []Mapped {
	dynamic, ok := exe.Program(elf.PT_DYNAMIC)
	if !ok {
		return nil
	}
	w := uint64(c.Arch.AddrSize)
	debug, ok := c.dynamicEntry(dynamic.Vaddr+bias, elf.DT_DEBUG)
	if !ok || debug == 0 {
		return nil
	}
	link, ok := c.wordAt(debug + w) // after r_version
	var list []Mapped
	seen := make(map[uint64]bool) // a damaged list may contain a cycle
	for n := 0; ok && link != 0 && !seen[link] && n < maxLinks; n++ {
		seen[link] = true
		base, _ := c.wordAt(link)
		name, _ := c.wordAt(link + w)
		file := c.cstring(name)
		// The first entry is the program. An entry whose name has no folder is the vDSO.
		if n > 0 && strings.Contains(file, "/") {
			list = append(list, Mapped{Path: file, Bias: base, HasBias: true})
		}
		link, ok = c.wordAt(link + 3*w)
	}
	return list
}

// dynamicEntry returns the value of a tag in the dynamic segment at an address.
func (c *Core) dynamicEntry(addr uint64, tag elf.DynTag) (uint64, bool) {
	w := uint64(c.Arch.AddrSize)
	for range maxLinks {
		t, ok := c.wordAt(addr)
		if !ok || elf.DynTag(t) == elf.DT_NULL {
			return 0, false
		}
		if elf.DynTag(t) == tag {
			return c.wordAt(addr + w)
		}
		addr += 2 * w
	}
	return 0, false
}

// wordAt reads an address-sized number from the core's own memory.
func (c *Core) wordAt(addr uint64) (uint64, bool) {
	var p [8]byte
	if _, err := c.ReadAt(addr, p[:c.Arch.AddrSize]); err != nil {
		return 0, false
	}
	return c.word(p[:]), true
}
