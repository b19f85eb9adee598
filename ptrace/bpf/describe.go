package bpf

import (
	"encoding/binary"
	"slices"
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
	typeAddress              // unsigned long
	typeTwo                  // unsigned long f(unsigned long a, unsigned long b)
	typeWhere                // of that: it is verified once, and not anew for each call
	typeSlot
	typeFour // unsigned long f(unsigned long a, unsigned long b, unsigned long c, unsigned long d)
	typeCopy
	typePage
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
		global  = kindFunc<<24 | 1
		bits    = 32
	)
	names := []byte{0}
	name := func(text string) uint32 {
		at := len(names)
		names = append(append(names, text...), 0)
		return uint32(at)
	}
	arguments := func(count uint32) []uint32 { // of a function of addresses
		words := []uint32{0, proto | count, typeAddress}
		for range count {
			words = append(words, name("argument"), typeAddress)
		}
		return words
	}
	types := slices.Concat(
		[]uint32{name("unsigned int"), number, bits / 8, bits},
		[]uint32{name("bpf_timer"), structs, timerLength},
		[]uint32{0, structs | member, timerLength, name("timer"), typeTimer, 0},
		[]uint32{0, proto, typeNumber},
		[]uint32{name("tick"), static, typeSignature},
		[]uint32{name("unsigned long"), number, 2 * bits / 8, 2 * bits},
		arguments(2),
		[]uint32{name("where"), global, typeTwo},
		[]uint32{name("slot"), global, typeTwo},
		arguments(4),
		[]uint32{name("copy"), global, typeFour},
		[]uint32{name("page"), global, typeFour},
	)
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
