package capture

// Code implements unwind.Code: instructions come from the image's file, or from the process's memory where the image
// was read from there.
func (sp *space) Code(addr uint64, p []byte) bool {
	_, f, ok := sp.find(addr)
	if !ok || f.module == nil {
		return false
	}
	b, err := f.module.image.Bytes(addr-f.bias, uint64(len(p)))
	return err == nil && copy(p, b) == len(p)
}

// Stub implements unwind.Code. The table's first entry is another thing, it leads to the dynamic linker; its size, on
// aarch64, riscv64 and s390x, is 32 bytes.
func (sp *space) Stub(addr uint64) bool {
	const first = 32
	_, f, ok := sp.find(addr)
	if !ok || f.module == nil {
		return false
	}
	offset, ok := f.module.image.SectionOffset(".plt", addr-f.bias)
	return ok && offset >= first
}

// Function implements unwind.Code by the symbol that covers the address, or the table of a Go program.
func (sp *space) Function(addr uint64) (start, end uint64, ok bool) {
	_, f, ok := sp.find(addr)
	if !ok || f.module == nil {
		return 0, 0, false
	}
	start, end, ok = f.module.limits(addr-f.bias, sp.files)
	return start + f.bias, end + f.bias, ok
}

// ReturnProbe implements unwind.Probes: the kernel's code for return probes is what its mapping begins with.
func (sp *space) ReturnProbe(addr uint64) bool {
	i := sp.mapping(addr)
	return i >= 0 && sp.maps[i].Start == addr && sp.maps[i].Path == "[uprobes]"
}
