package elfimage

import (
	"debug/elf"
	"fmt"
)

// Code returns a copy of n bytes of code at a link-time address. The error is ErrMalformed (also if the bytes are not
// in one executable segment), ErrTooLarge or an error of the image's reader.
func (m *Image) Code(addr, n uint64) ([]byte, error) {
	for _, s := range m.segments {
		if s.Flags&elf.PF_X != 0 && addr >= s.Vaddr && addr-s.Vaddr < s.Memsz {
			return m.at(addr, n)
		}
	}
	return nil, fmt.Errorf("%w: no code at %#x", ErrMalformed, addr)
}
