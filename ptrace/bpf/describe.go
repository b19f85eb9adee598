package bpf

import (
	"encoding/binary"
	"unsafe"
)

// The types that a timer's table and program must be described by, in the format that the kernel describes itself in
// (btf.go): their numbers, in the order of description.
const (
	typeNumber    = 1 + iota // unsigned int
	typeTimer                // struct bpf_timer
	typeValue                // struct { struct bpf_timer timer; }
	typeSignature            // unsigned int f(void)
	typeFunction             // static
)

// timerLength is the size of struct bpf_timer (linux/bpf.h).
const timerLength = 16

// functionInfo says which type of function begins at an instruction (struct bpf_func_info).
type functionInfo struct{ instruction, kind uint32 }

// described is that of the types.
func described() []byte {
	const (
		number  = 1 << 24 // kinds, and numbers of elements
		structs = kindStruct << 24
		member  = 1
		proto   = 13 << 24
		static  = kindFunc << 24
		bits    = 32
	)
	names := []byte("\x00unsigned int\x00bpf_timer\x00timer\x00tick\x00")
	const nameNumber, nameTimer, nameMember, nameFunction = 1, 14, 24, 30
	types := []uint32{
		nameNumber, number, bits / 8, bits,
		nameTimer, structs, timerLength,
		0, structs | member, timerLength, nameMember, typeTimer, 0,
		0, proto, typeNumber,
		nameFunction, static, typeSignature,
	}
	const magic = 0x0001_eb9f // of format version 1
	length := uint32(4 * len(types))
	header := []uint32{magic, headerLength, 0, length, length, uint32(len(names))}
	var p []byte
	for _, word := range append(header, types...) {
		p = binary.NativeEndian.AppendUint32(p, word)
	}
	return append(p, names...)
}

// loadTypes hands it to the kernel; the result is a descriptor.
func loadTypes() (int, error) {
	const commandTypes = 18
	p := described()
	attributes := struct {
		types, log    uint64
		size, _, _, _ uint32
	}{types: uint64(uintptr(unsafe.Pointer(&p[0]))), size: uint32(len(p))}
	fd, errno := bpf(commandTypes, unsafe.Pointer(&attributes), unsafe.Sizeof(attributes))
	if errno != 0 {
		return -1, loadError("load a description of types", errno)
	}
	return fd, nil
}
