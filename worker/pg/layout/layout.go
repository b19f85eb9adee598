// Package layout has the offsets, sizes, node tags and enumerations of PostgreSQL's structures on 64-bit machines. It
// has one file for each major version. The program tools/layoutgen writes these files.
//
// Each member of a structure is a field of type Offset. The zero value means that the version has no such member, or
// that its place is not known. Callers must treat both in the same way: they leave out the figure, and never guess.
//
// The package must not know the programs that read the structures.
package layout

// Offset is the place of a member in its structure, the size of a structure, or the value of an enumerator. The zero
// value is absent.
type Offset struct{ next int32 } // the value plus 1; 0: absent

// absent is the result of Int for an absent offset. An address to which it is added is not canonical, so the kernel
// refuses to read there.
const absent = 1 << 62

// At returns the offset with the value n, which must not be negative.
func At(n int32) Offset { return Offset{next: n + 1} }

// Known reports whether the version has the member and its place is known.
func (o Offset) Known() bool { return o.next != 0 }

// Int returns the value. If the offset is absent, the result is so large that no memory can be read there.
func (o Offset) Int() int {
	if !o.Known() {
		return absent
	}
	return int(o.next) - 1
}

// Uint64 returns the result of Int as a uint64.
func (o Offset) Uint64() uint64 { return uint64(o.Int()) }

// Or returns the value, or n if the offset is absent. It serves readers that have their own mark for a missing member.
func (o Offset) Or(n int) int {
	if !o.Known() {
		return n
	}
	return o.Int()
}

// Of returns the layout of a major version. It returns false if the version is not known. The caller must not change
// the layout.
func Of(major int) (*Layout, bool) {
	l, ok := layouts[major]
	return l, ok
}

//nolint:gochecknoglobals // a table
var layouts = map[int]*Layout{14: &pg14, 15: &pg15, 16: &pg16, 17: &pg17, 18: &pg18, 19: &pg19}
