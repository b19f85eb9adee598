package locks

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// region finds a named part of the shared memory by the server's own index of it (ShmemIndex in shmem.c). So a
// structure is found also if the variable that points to it is not exported. It returns 0 if the index does not have the
// name or is not consistent.
func (r *Reader) region(name string) uint64 {
	if r.regions == nil {
		r.regions = make(map[string]uint64)
		r.readIndex()
	}
	return r.regions[name]
}

func (r *Reader) one(addr uint64, size int) []byte {
	b, err := r.mem.read([]piece{{addr, size}})
	if err != nil {
		return nil
	}
	return b[0]
}

func (r *Reader) readIndex() {
	const maxBuckets, maxSegments = 4096, 64
	start := r.segment()
	b := r.one(start, shmemHeader)
	if start == 0 || b == nil || u32(b, 0) != shmemMagic {
		return
	}
	end, table := start+u64(b, shmemTotalSize), u64(b, shmemIndex)
	inside := func(addr uint64, size int) bool {
		return addr%8 == 0 && addr >= start && addr < end && end-addr >= uint64(size)
	}
	if !inside(table, hashSize) {
		return
	}
	if b = r.one(table, hashSize); b == nil || u64(b, hashKeySize) != indexKeySize || u64(b, hashEntrySize) != indexEntrySize {
		return
	}
	segments, size, buckets := u64(b, hashNSegs), u64(b, hashSegment), uint64(u32(b, hashMaxBucket))+1
	if segments == 0 || segments > maxSegments || size == 0 || size > maxBuckets || buckets > segments*size {
		return
	}
	directory := r.one(table+hashSize, int(8*segments))
	if directory == nil {
		return
	}
	steps := 0
	for i := range int(segments) {
		segment := u64(directory, 8*i)
		if !inside(segment, int(8*size)) {
			return
		}
		heads := r.one(segment, int(8*size))
		for j := range int(size) {
			if heads == nil || uint64(i)*size+uint64(j) >= buckets {
				break
			}
			for element := u64(heads, 8*j); element != 0; {
				if steps++; steps > maxBuckets || !inside(element, elementKey+indexEntrySize) {
					return
				}
				b := r.one(element, elementKey+indexEntrySize)
				if b == nil {
					return
				}
				entry := b[elementKey:]
				if at := u64(entry, indexLocation); inside(at, 8) {
					r.regions[text(entry[:indexKeySize])] = at
				}
				element = u64(b, 0)
			}
		}
	}
}

// text returns the characters before the first NUL byte, or nothing if there is no such byte.
func text(b []byte) string {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return ""
	}
	return string(b[:i])
}

// gid returns the identifier of a prepared transaction. It is empty if the server's table does not have the same
// transaction at the same process.
func (r *Reader) gid(proc int, xid uint32) string {
	name, ok := r.gids[proc]
	if !ok {
		name = r.readGID(proc, xid)
		r.gids[proc] = name
	}
	return name
}

func (r *Reader) readGID(proc int, xid uint32) string {
	table := r.region("Prepared Transaction Table")
	if table == 0 || xid == 0 {
		return ""
	}
	b := r.one(table+twoPhaseCount, 4)
	if b == nil {
		return ""
	}
	count := i32(b, 0)
	if count <= 0 || count > r.prepared {
		return ""
	}
	pointers := r.one(table+twoPhaseXacts, 8*count)
	if pointers == nil {
		return ""
	}
	pieces := make([]piece, count)
	for i := range pieces {
		pieces[i] = piece{u64(pointers, 8*i), r.layout.gxactSize}
	}
	entries, err := r.mem.read(pieces)
	if err != nil {
		return ""
	}
	for _, b := range entries {
		if b != nil && i32(b, gxactProcNo) == proc && u32(b, gxactXid) == xid {
			name := text(b[r.layout.gxactGID:][:gidSize])
			if !utf8.ValidString(name) {
				name = strings.ToValidUTF8(name, "\uFFFD")
			}
			return name
		}
	}
	return ""
}
