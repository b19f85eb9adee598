package corefile

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"pg_stat_backtrace/unwind/elfimage"
)

type fileStat interface{ Stat() (fs.FileInfo, error) }

// nameCore is the name of most notes.
const nameCore = "CORE"

// The types of the notes that are read (<linux/elf.h>).
const (
	ntPRStatus   = 1
	ntFPRegSet   = 2
	ntPRPSInfo   = 3
	ntAuxv       = 6
	ntARMPACMask = 0x406
	ntFile       = 0x46494c45
)

// Offsets in struct elf_prstatus and struct elf_prpsinfo of 64-bit Linux (<linux/elfcore.h>). They are equal on every
// architecture of package arch.
const (
	prCursig = 12
	prPID    = 32
	prReg    = 112

	psName   = 1
	psPID    = 24
	psFname  = 40
	psArgs   = 56
	psSize   = 136
	fnameLen = 16
)

const (
	// maxAuxv limits the entries of the auxiliary vector, maxFiles the entries of NT_FILE.
	maxAuxv  = 256
	maxFiles = 1 << 17
)

// readNotes reads the threads and the properties of the process. The error is ErrNoThreads.
func (c *Core) readNotes() error {
	notes, err := c.img.Notes()
	c.Damage = err
	for i := range notes {
		if err := c.readNote(&notes[i]); err != nil && c.Damage == nil {
			c.Damage = fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if len(c.Threads) == 0 {
		if c.Damage != nil {
			return fmt.Errorf("%w: %w", ErrNoThreads, c.Damage)
		}
		return ErrNoThreads
	}
	if mask := c.Threads[0].pacMask; mask != 0 {
		c.Arch = c.Arch.WithCodeMask(mask)
	}
	if c.Process.PID == 0 {
		c.Process.PID = c.Threads[0].TID
	}
	return nil
}

// readNote reads one note. The notes of a thread follow its NT_PRSTATUS.
func (c *Core) readNote(n *elfimage.Note) error {
	var thread *Thread
	if len(c.Threads) > 0 {
		thread = &c.Threads[len(c.Threads)-1]
	}
	switch {
	case n.Name == nameCore && n.Type == ntPRStatus:
		return c.addThread(n.Desc)
	case n.Name == nameCore && n.Type == ntPRPSInfo:
		return c.setProcess(n.Desc)
	case n.Name == nameCore && n.Type == ntAuxv:
		c.setAuxv(n.Desc)
	case n.Name == nameCore && n.Type == ntFile:
		return c.setFiles(n.Desc)
	case n.Name == nameCore && n.Type == ntFPRegSet && thread != nil:
		return c.Arch.DecodeFPRegSet(&thread.Registers, n.Desc)
	case n.Name == "LINUX" && n.Type == ntARMPACMask && thread != nil && len(n.Desc) >= 16:
		// struct user_pac_mask has two masks: for data addresses and for code addresses.
		thread.pacMask = c.Arch.Order.Uint64(n.Desc[8:])
	}
	return nil
}

// addThread adds the thread of a note NT_PRSTATUS.
func (c *Core) addThread(p []byte) error {
	if len(p) < prReg || len(c.Threads) == maxThreads {
		return fmt.Errorf("NT_PRSTATUS of %d bytes, after %d threads", len(p), len(c.Threads))
	}
	regs, err := c.Arch.DecodePRStatus(p[prReg:])
	if err != nil {
		return err
	}
	c.Threads = append(c.Threads, Thread{
		TID: int(int32(c.Arch.Order.Uint32(p[prPID:]))), Signal: int(int16(c.Arch.Order.Uint16(p[prCursig:]))),
		Registers: regs,
	})
	return nil
}

// setProcess sets Process from the note NT_PRPSINFO.
func (c *Core) setProcess(p []byte) error {
	if len(p) < psSize {
		return fmt.Errorf("NT_PRPSINFO of %d bytes", len(p))
	}
	c.Process = Process{
		PID: int(int32(c.Arch.Order.Uint32(p[psPID:]))), State: p[psName],
		Name: text(p[psFname:][:fnameLen]), Args: strings.TrimRight(text(p[psArgs:psSize]), " "),
	}
	if s := p[psName]; s < 'A' || s > 'z' {
		c.Process.State = 0
	}
	return nil
}

// text returns the bytes before the first NUL.
func text(p []byte) string {
	if i := bytes.IndexByte(p, 0); i >= 0 {
		p = p[:i]
	}
	return string(p)
}

// setAuxv reads the note NT_AUXV: pairs of a tag and a value, up to the tag 0.
func (c *Core) setAuxv(p []byte) {
	w := c.Arch.AddrSize
	c.auxv = make(map[uint64]uint64)
	for len(p) >= 2*w && len(c.auxv) < maxAuxv {
		tag, value := c.word(p), c.word(p[w:])
		if tag == 0 {
			return
		}
		c.auxv[tag] = value
		p = p[2*w:]
	}
}

// word reads an address-sized number.
func (c *Core) word(p []byte) uint64 {
	if c.Arch.AddrSize == 4 {
		return uint64(c.Arch.Order.Uint32(p))
	}
	return c.Arch.Order.Uint64(p)
}

// setFiles reads the note NT_FILE: the number of mappings and the page size, then start, end and offset in pages of
// each mapping, then the paths.
func (c *Core) setFiles(p []byte) error {
	w := uint64(c.Arch.AddrSize)
	if uint64(len(p)) < 2*w {
		return fmt.Errorf("NT_FILE of %d bytes", len(p))
	}
	count, page := c.word(p), c.word(p[w:])
	table := p[2*w:]
	if count > uint64(len(table))/(3*w) || count > maxFiles {
		return fmt.Errorf("NT_FILE with %d entries in %d bytes", count, len(p))
	}
	paths := table[count*3*w:]
	files := make([]File, 0, count)
	for i := range count {
		end := bytes.IndexByte(paths, 0)
		if end < 0 {
			return fmt.Errorf("NT_FILE has %d entries, but %d paths", count, i)
		}
		entry := table[i*3*w:]
		f := File{
			Start: c.word(entry), End: c.word(entry[w:]), Offset: c.word(entry[2*w:]) * page,
			Path: strings.TrimSuffix(string(paths[:end]), " (deleted)"),
		}
		paths = paths[end+1:]
		if f.Start < f.End {
			files = append(files, f)
		}
	}
	slices.SortStableFunc(files, func(a, b File) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	c.Files = files[:0]
	for _, f := range files { // the kernel's mappings do not overlap
		if n := len(c.Files); n == 0 || f.Start >= c.Files[n-1].End {
			c.Files = append(c.Files, f)
		}
	}
	return nil
}
