package corefile

import (
	"bytes"
	"debug/elf"
	"fmt"

	"pg_stat_backtrace/unwind/elfimage"
)

// Evidence says how reliably a file was verified to be the file that the process had mapped.
type Evidence uint8

// The kinds of evidence, the weakest first.
const (
	// ByLayout: the addresses in the core fit the file's headers. The core contains no code of the file. It may contain
	// the file's first page, but two programs with the same imports have equal first pages.
	ByLayout Evidence = iota
	// ByContent: all read-only memory in the core, which includes code, equals the file's content.
	ByContent
	// ByBuildID: the build-id in the core's memory equals the file's build-id.
	ByBuildID
)

// String returns a short English phrase.
func (e Evidence) String() string {
	switch e {
	case ByBuildID:
		return "build-id"
	case ByContent:
		return "content"
	default:
		return "addresses only"
	}
}

// compareBytes is the maximum number of bytes that are compared of each read-only segment.
const compareBytes = 1 << 20

// Check verifies that img is the file that the process had mapped as m. It returns the load bias and the kind of
// evidence. The error is ErrMismatch, with the difference.
func (c *Core) Check(m *Mapped, img *elfimage.Image) (bias uint64, how Evidence, err error) {
	if img.Machine() != c.Arch.Machine || img.Order().String() != c.Arch.Order.String() {
		return 0, 0, fmt.Errorf("%s: %w: it is for %s", img.Name(), ErrMismatch, img.Machine())
	}
	if bias, err = c.bias(m, img); err != nil {
		return 0, 0, err
	}
	id := c.BuildID(m)
	if id != "" && id != img.BuildID() {
		return 0, 0, fmt.Errorf("%s: %w: its build-id is %q, the process had %q", img.Name(), ErrMismatch, img.BuildID(), id)
	}
	if err := c.checkSegments(img, bias); err != nil || id != "" {
		return bias, ByBuildID, err
	}
	how, err = c.compare(img, bias)
	return bias, how, err
}

// checkSegments checks that the process had mapped every segment of the file.
func (c *Core) checkSegments(img *elfimage.Image, bias uint64) error {
	for _, s := range img.Segments() {
		if s.Filesz > 0 && !c.mapped(s.Vaddr+bias, s.Flags&elf.PF_X != 0) {
			return fmt.Errorf("%s: %w: the process had no such segment at %#x", img.Name(), ErrMismatch, s.Vaddr+bias)
		}
	}
	return nil
}

// bias finds the load bias. If m does not have it, bias compares the addresses in the core with the addresses in the
// image.
func (c *Core) bias(m *Mapped, img *elfimage.Image) (uint64, error) {
	switch {
	case m.HasBias:
		return m.Bias, nil
	case len(m.Files) > 0:
		return biasOfFiles(m, img)
	case m.Header != 0 && len(img.Segments()) > 0:
		s := img.Segments()[0]
		return m.Header - (s.Vaddr - s.Offset), nil
	}
	return c.biasOfExe(img)
}

// biasOfFiles computes the load bias from the file's first mapping, which contains the ELF header.
func biasOfFiles(m *Mapped, img *elfimage.Image) (uint64, error) {
	for _, s := range img.Segments() {
		if s.Offset == 0 && s.Filesz > 0 {
			if bias := m.Files[0].Start - s.Vaddr; bias&0xfff == 0 {
				return bias, nil
			}
		}
	}
	return 0, fmt.Errorf("%s: %w: its header is not mapped as the core says", img.Name(), ErrMismatch)
}

// biasOfExe computes the load bias of the program. It compares the program with the auxiliary vector, which the kernel
// made at the program's start.
func (c *Core) biasOfExe(img *elfimage.Image) (uint64, error) {
	table, count, ok := img.ProgramTable()
	phdr, ok2 := c.auxv[atPHDR]
	if !ok || !ok2 {
		return 0, fmt.Errorf("%s: %w: the core does not say where its program lies", img.Name(), ErrMismatch)
	}
	bias := phdr - table
	if n, ok := c.auxv[atPHNUM]; ok && n != count {
		return 0, fmt.Errorf("%s: %w: %d program headers, the process had %d", img.Name(), ErrMismatch, count, n)
	}
	if entry, ok := c.auxv[atENTRY]; ok && entry != img.Entry()+bias {
		return 0, fmt.Errorf("%s: %w: it starts at %#x, the process started at %#x",
			img.Name(), ErrMismatch, img.Entry()+bias, entry)
	}
	if bias&0xfff != 0 || img.Type() == elf.ET_EXEC && bias != 0 {
		return 0, fmt.Errorf("%s: %w: program headers at %#x, the process had them at %#x",
			img.Name(), ErrMismatch, table, phdr)
	}
	return bias, nil
}

// compare compares the file's read-only segments with the core's memory. The error is ErrMismatch.
func (c *Core) compare(img *elfimage.Image, bias uint64) (Evidence, error) {
	how := ByLayout
	for _, s := range img.Segments() {
		if s.Memsz == 0 || s.Flags&elf.PF_W != 0 {
			continue
		}
		same, code := c.sameContent(img, s, bias)
		if !same {
			return 0, fmt.Errorf("%s: %w: its content at %#x differs", img.Name(), ErrMismatch, s.Vaddr+bias)
		}
		if code {
			how = ByContent
		}
	}
	return how, nil
}

// sameContent compares one segment with the core's memory. code is true if the segment is executable and the core
// contains more of it than the first page of the file.
func (c *Core) sameContent(img *elfimage.Image, s elfimage.Segment, bias uint64) (same, code bool) {
	n := min(s.Filesz, compareBytes)
	buf := make([]byte, min(n, memoryPage))
	for off := uint64(0); off < n; off += uint64(len(buf)) {
		got, _ := c.ReadAt(s.Vaddr+bias+off, buf[:min(uint64(len(buf)), n-off)])
		if got == 0 {
			continue
		}
		want, err := img.Bytes(s.Vaddr+off, uint64(got))
		if err != nil || !bytes.Equal(want, buf[:got]) {
			return false, false
		}
		code = code || s.Flags&elf.PF_X != 0 && s.Offset+off+uint64(got) > memoryPage
	}
	return true, code
}
