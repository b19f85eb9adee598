package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// The kinds of types of the format, linux/btf.h, and what follows a type of each: so many bytes, or so many for each of
// its elements.
const (
	kindStruct = 4
	kindUnion  = 5
	kindFunc   = 12
)

var (
	// INT, ARRAY, VAR, DECL_TAG.
	afterType = map[uint32]int{1: 4, 3: 12, 14: 4, 17: 4}
	// STRUCT, UNION, ENUM, FUNC_PROTO, DATASEC, ENUM64.
	afterElement = map[uint32]int{4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
)

const (
	headerLength = 24
	typeLength   = 12
	lastKind     = 19
)

var errBTF = errors.New("the kernel's description of its types is damaged")

// types is a kernel's description of its types (Documentation/bpf/btf.rst).
type types struct {
	order   binary.ByteOrder
	text    []byte   // of the names
	section []byte   // of the types
	at      []uint32 // where each type begins in it; type 0 is void
}

// parseTypes finds where each type begins.
func parseTypes(p []byte) (*types, error) {
	const magic = 0xeb9f
	t := &types{order: binary.LittleEndian}
	if len(p) < headerLength {
		return nil, errBTF
	}
	if binary.BigEndian.Uint16(p) == magic {
		t.order = binary.BigEndian
	}
	if t.order.Uint16(p) != magic {
		return nil, errBTF
	}
	var ok1, ok2 bool
	body := t.order.Uint32(p[4:])
	t.section, ok1 = part(p, body, t.order.Uint32(p[8:]), t.order.Uint32(p[12:]))
	t.text, ok2 = part(p, body, t.order.Uint32(p[16:]), t.order.Uint32(p[20:]))
	if !ok1 || !ok2 {
		return nil, errBTF
	}
	t.at = make([]uint32, 1, 1+len(t.section)/typeLength)
	for at := 0; at < len(t.section); {
		if len(t.section)-at < typeLength {
			return nil, errBTF
		}
		t.at = append(t.at, uint32(at))
		info := t.order.Uint32(t.section[at+4:])
		kind, elements := info>>24&0x1f, int(info&0xffff)
		if kind > lastKind {
			return nil, fmt.Errorf("%w: kind %d of type %d is unknown", errBTF, kind, len(t.at)-1)
		}
		if at += typeLength + afterType[kind] + elements*afterElement[kind]; at > len(t.section) {
			return nil, errBTF
		}
	}
	return t, nil
}

// part is a part of p that the header describes.
func part(p []byte, body, offset, length uint32) ([]byte, bool) {
	start := uint64(body) + uint64(offset)
	end := start + uint64(length)
	if start > uint64(len(p)) || end > uint64(len(p)) {
		return nil, false
	}
	return p[start:end], true
}

// is reports whether the text at an offset is a name.
func (t *types) is(offset uint32, name string) bool {
	return uint64(offset)+uint64(len(name)) < uint64(len(t.text)) &&
		bytes.HasPrefix(t.text[offset:], []byte(name)) && t.text[int(offset)+len(name)] == 0
}

// find returns the number of the first type of a kind that has a name, and a content if it is a structure.
func (t *types) find(kind uint32, name string) (id uint32, ok bool) {
	for id := 1; id < len(t.at); id++ {
		at := t.at[id]
		info := t.order.Uint32(t.section[at+4:])
		if info>>24&0x1f == kind && t.is(t.order.Uint32(t.section[at:]), name) && (kind == kindFunc || info&0xffff > 0) {
			return uint32(id), true
		}
	}
	return 0, false
}

// member returns where a member begins in a structure, in bytes, and its type. Members of nameless members count.
func (t *types) member(structure uint32, name string) (offset, kind uint32, ok bool) {
	const deepest = 8
	return t.memberIn(structure, name, deepest)
}

func (t *types) memberIn(structure uint32, name string, depth int) (offset, kind uint32, ok bool) {
	if depth == 0 || structure == 0 || structure >= uint32(len(t.at)) {
		return 0, 0, false
	}
	p := t.section[t.at[structure]:]
	info := t.order.Uint32(p[4:])
	if k := info >> 24 & 0x1f; k != kindStruct && k != kindUnion {
		return 0, 0, false
	}
	for i := range int(info & 0xffff) {
		m := p[typeLength+12*i:]
		bits, member, field := t.order.Uint32(m[8:]), t.order.Uint32(m[4:]), false
		if info>>31 != 0 {
			field = bits>>24 != 0 // its size in bits is there
			bits &= 0xffffff
		}
		if t.is(t.order.Uint32(m), name) {
			return bits / 8, member, bits%8 == 0 && !field
		}
		if !t.is(t.order.Uint32(m), "") {
			continue
		}
		if inner, kind, ok := t.memberIn(member, name, depth-1); ok {
			return bits/8 + inner, kind, bits%8 == 0
		}
	}
	return 0, 0, false
}

// size is the size in bytes of an integer, an enumeration or a pointer, whatever else its type is called; 0 of others.
func (t *types) size(id uint32) uint32 {
	const (
		kindInteger, kindPointer, kindEnum, kindTypedef, kindVolatile, kindTag = 1, 2, 6, 8, 9, 18

		pointer = 8
		deepest = 16
	)
	for range deepest {
		if id == 0 || id >= uint32(len(t.at)) {
			return 0
		}
		p := t.section[t.at[id]:]
		value := t.order.Uint32(p[8:]) // a size, or another type
		switch k := t.order.Uint32(p[4:]) >> 24 & 0x1f; {
		case k == kindInteger || k == kindEnum:
			return value
		case k == kindPointer:
			return pointer
		case kindTypedef <= k && k <= kindVolatile+2 || k == kindTag: // and const, and restrict
			id = value
		default:
			return 0
		}
	}
	return 0
}

// layout is what the program must know of a kernel.
type layout struct {
	find, release                                           uint32 // its functions bpf_task_from_pid and bpf_task_release
	onProcessor, processor, state, started, left, preempted field  // in struct task_struct
	space                                                   field  // there, too: its struct mm_struct
	directory                                               field  // in that: the kernel's address of its page tables
}

// field is where a member is in a structure, and of how many bytes: kernels differ in both.
type field struct {
	at   int16
	size uint32
}

// layoutOf finds it in a kernel's description of its types.
func layoutOf(btf []byte) (layout, error) {
	t, err := parseTypes(btf)
	if err != nil {
		return layout{}, err
	}
	var l layout
	for name, to := range map[string]*uint32{"bpf_task_from_pid": &l.find, "bpf_task_release": &l.release} {
		id, ok := t.find(kindFunc, name)
		if !ok {
			return layout{}, fmt.Errorf("%w: this kernel has no function %s", ErrUnsupported, name)
		}
		*to = id
	}
	task, _ := t.find(kindStruct, "task_struct")
	info, inner, ok := t.member(task, "thread_info")
	if !ok {
		return layout{}, fmt.Errorf("%w: struct task_struct of this kernel has no thread_info", ErrUnsupported)
	}
	space, _ := t.find(kindStruct, "mm_struct")
	for _, m := range []struct {
		in, base uint32
		name     string
		to       *field
	}{
		{task, 0, "on_cpu", &l.onProcessor}, {inner, info, "cpu", &l.processor}, {task, 0, "__state", &l.state},
		{task, 0, "start_boottime", &l.started}, {task, 0, "nvcsw", &l.left}, {task, 0, "nivcsw", &l.preempted},
		{task, 0, "mm", &l.space}, {space, 0, "pgd", &l.directory},
	} {
		offset, kind, ok := t.member(m.in, m.name)
		if offset += m.base; !ok || offset > 1<<15-1 {
			return layout{}, fmt.Errorf("%w: a structure of this kernel has no %s, or at its end", ErrUnsupported, m.name)
		}
		*m.to = field{int16(offset), t.size(kind)}
		if loadOf[m.to.size] == 0 {
			return layout{}, fmt.Errorf("%w: %s of a structure of this kernel is no number", ErrUnsupported, m.name)
		}
	}
	return l, nil
}
