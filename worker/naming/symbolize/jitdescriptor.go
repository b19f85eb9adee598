package symbolize

import (
	"debug/elf"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// JitDescriptor returns the link-time address of the first variable of GDB's JIT interface, or 0 if the image has
// none.
func (m *Module) JitDescriptor() uint64 {
	m.jitOnce.Do(func() {
		for _, table := range [...]string{".dynsym", ".symtab"} {
			symbols, err := m.Image.Symbols(table)
			if err != nil {
				continue
			}
			for s := range symbols {
				if s.Name == symbol.JITDescriptor && isDescriptor(&s) {
					m.JIT = s.Addr
					return
				}
			}
		}
	})
	return m.JIT
}

func isDescriptor(s *elfimage.Symbol) bool {
	return s.Addr != 0 && s.Type == elf.STT_OBJECT && s.Size == symbol.JITDescriptorSize
}
