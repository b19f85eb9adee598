package locks

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// region returns the address of a named part of the shared memory, by the server's index of these parts (ShmemIndex in
// shmem.c). So it also finds a structure whose pointer variable is not exported. It returns 0 if the index does not have
// the name or is not consistent.
func (r *Reader) region(name string) uint64 {
	if r.regions == nil {
		r.regions = make(map[string]uint64)
		r.readIndex()
	}
	return r.regions[name]
}

// Region returns the address of a named part of the shared memory; 0: not found. A part that was not found is searched again at
// the next call, because the server may have been starting.
func (r *Reader) Region(name string) uint64 {
	if r.procGlobal == 0 || r.findArray() != nil {
		return 0
	}
	at := r.region(name)
	if at == 0 {
		r.regions = nil
	}
	return at
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
	l := &r.layout
	start := r.segment()
	b := r.one(start, l.ShmemHeader)
	if start == 0 || b == nil || u32(b, 0) != l.ShmemMagic {
		return
	}
	end := start + u64(b, l.ShmemTotalSize)
	inside := func(addr uint64, size int) bool {
		return addr%8 == 0 && addr >= start && addr < end && end-addr >= uint64(size)
	}
	if l.ShmemAllocator != 0 {
		allocator := start + u64(b, l.ShmemAllocator)
		if !inside(allocator, l.ShmemIndex+8) {
			return
		}
		if b = r.one(allocator, l.ShmemIndex+8); b == nil {
			return
		}
	}
	table := u64(b, l.ShmemIndex)
	if !inside(table, l.HashSize) {
		return
	}
	if b = r.one(table, l.HashSize); b == nil || u64(b, l.HashKeySize) != uint64(l.IndexKeySize) ||
		u64(b, l.HashEntrySize) != uint64(l.IndexEntrySize) {
		return
	}
	segments, size, buckets := u64(b, l.HashNSegs), uint64(l.HashSegmentSize), uint64(u32(b, l.HashMaxBucket))+1
	if l.HashSegment != 0 {
		size = u64(b, l.HashSegment)
	}
	if segments == 0 || segments > maxSegments || size == 0 || size > maxBuckets || buckets > segments*size {
		return
	}
	directoryAt := at(table, l.HashSize)
	if l.HashDirectory != 0 {
		directoryAt = u64(b, l.HashDirectory)
	}
	if !inside(directoryAt, int(8*segments)) {
		return
	}
	directory := r.one(directoryAt, int(8*segments))
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
				if steps++; steps > maxBuckets || !inside(element, l.ElementKey+l.IndexEntrySize) {
					return
				}
				b := r.one(element, l.ElementKey+l.IndexEntrySize)
				if b == nil {
					return
				}
				entry := b[l.ElementKey:]
				if at := u64(entry, l.IndexLocation); inside(at, 8) {
					r.regions[text(entry[:l.IndexKeySize])] = at
				}
				element = u64(b, 0)
			}
		}
	}
}

// text returns the characters before the first NUL byte, or "" if there is no such byte.
func text(b []byte) string {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return ""
	}
	return string(b[:i])
}

// gid returns the identifier of the prepared transaction xid, whose PGPROC is at the position proc. It is empty if the
// server's table does not have this transaction with this PGPROC.
func (r *Reader) gid(proc int, xid uint32) string {
	name, ok := r.gids[proc]
	if !ok {
		name = r.readGID(proc, xid)
		r.gids[proc] = name
	}
	return name
}

// readGID is gid without its cache. A proc of -1 stands for any PGPROC.
func (r *Reader) readGID(proc int, xid uint32) string {
	table := r.region("Prepared Transaction Table")
	if table == 0 || xid == 0 {
		return ""
	}
	b := r.one(at(table, r.layout.TwoPhaseCount), 4)
	if b == nil {
		return ""
	}
	count := i32(b, 0)
	if count <= 0 || count > r.prepared {
		return ""
	}
	pointers := r.one(at(table, r.layout.TwoPhaseXacts), 8*count)
	if pointers == nil {
		return ""
	}
	pieces := make([]piece, count)
	for i := range pieces {
		pieces[i] = piece{u64(pointers, 8*i), r.layout.GxactSize}
	}
	entries, err := r.mem.read(pieces)
	if err != nil {
		return ""
	}
	for _, b := range entries {
		if b != nil && (proc < 0 || i32(b, r.layout.GxactProcNo) == proc) && r.xidOf(b) == xid {
			name := text(b[r.layout.GxactGID:][:r.layout.GIDSize])
			if !utf8.ValidString(name) {
				name = strings.ToValidUTF8(name, "\uFFFD")
			}
			return name
		}
	}
	return ""
}

// xidOf returns the transaction id of a GlobalTransactionData, without its epoch.
func (r *Reader) xidOf(b []byte) uint32 {
	if r.layout.GxactXidSize == 8 {
		return uint32(u64(b, r.layout.GxactXid)) // the lower half is the id
	}
	return u32(b, r.layout.GxactXid)
}
