package naming

// Code implements unwind.Code. Instructions come from the image's file, or from the process's memory if the image was
// read from there.
func (sp *Space) Code(addr uint64, p []byte) bool {
	_, f, ok := sp.Lookup(addr)
	if !ok || f.Module == nil {
		return false
	}
	b, err := f.Module.Image.Bytes(addr-f.Bias, uint64(len(p)))
	return err == nil && copy(p, b) == len(p)
}

// Stub implements unwind.Code. A stub is an entry of the procedure linkage table (.plt), except the first, which calls
// the dynamic linker. The first entry has 32 bytes on aarch64, riscv64 and s390x.
func (sp *Space) Stub(addr uint64) bool {
	const first = 32
	_, f, ok := sp.Lookup(addr)
	if !ok || f.Module == nil {
		return false
	}
	offset, ok := f.Module.Image.SectionOffset(".plt", addr-f.Bias)
	return ok && offset >= first
}

// Function implements unwind.Code, by the symbol that covers the address or by the table of a Go program.
func (sp *Space) Function(addr uint64) (start, end uint64, ok bool) {
	_, f, ok := sp.Lookup(addr)
	if !ok || f.Module == nil {
		return 0, 0, false
	}
	start, end, ok = f.Module.FunctionLimits(addr-f.Bias, sp.Files)
	return start + f.Bias, end + f.Bias, ok
}

// ReturnProbe implements unwind.Probes. The kernel's code for return probes is at the start of its mapping.
func (sp *Space) ReturnProbe(addr uint64) bool {
	i := sp.Mapping(addr)
	return i >= 0 && sp.Maps[i].Start == addr && sp.Maps[i].Path == "[uprobes]"
}
