package locks

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
)

// Bounds of one search, and how long its result is used.
const (
	maxBuffers = 1 << 22  // 32 GB of shared buffers: reading their descriptors takes some 50 ms
	maxFile    = 64 << 20 // bytes of pg_class
	maxCached  = 4096
	keep       = 10 * time.Second
)

// errInconsistent means that pages or buffers have a format that this package does not know.
var errInconsistent = errors.New("the pages of pg_class have an unknown format")

// NameReader finds names of relations of one run of a server. It must not be used by several goroutines at a time.
type NameReader struct {
	memory  pageMemory
	pid     int // the postmaster; 0: read does not replace memory
	dataDir string

	descriptors, blocks, count uint64 // addresses of the variables
	most                       int    // the largest number of buffers that are searched; 0: maxBuffers

	names map[nameKey]cached
}

// pageMemory reads memory of the server; see process.Memory.
type pageMemory interface {
	Read(addr uint64, p []byte) (int, error)
}

type nameKey struct{ database, relation uint32 }

// cached is the name of a relation, or "" if it is not certain, and how long it is used.
type cached struct {
	name  string
	until time.Time
}

// OpenNames returns a reader for a running server. The error wraps waits.ErrUnsupported if the names of this server cannot be
// found.
func OpenNames(program *cluster.Program, major, postmaster int, dataDir string) (*NameReader, error) {
	const oldest, newest = 14, 19
	littleEndian := binary.NativeEndian.Uint16([]byte{1, 0}) == 1 // item identifiers are bit fields
	if major < oldest || major > newest || !littleEndian {
		return nil, fmt.Errorf("%w: the buffers of PostgreSQL %d are not known to this release", waits.ErrUnsupported, major)
	}
	found, err := program.Variables("BufferDescriptors", "BufferBlocks", "NBuffers")
	if err != nil {
		return nil, err
	}
	r := &NameReader{
		memory: process.NewMemory(postmaster), pid: postmaster, dataDir: dataDir, descriptors: found["BufferDescriptors"],
		blocks: found["BufferBlocks"], count: found["NBuffers"], names: make(map[nameKey]cached),
	}
	if r.descriptors == 0 || r.blocks == 0 || r.count == 0 {
		return nil, fmt.Errorf("%w: the server's program %s does not export its buffers", waits.ErrUnsupported, program.Path)
	}
	return r, nil
}

// Names returns the names of relations of a database by their oids. A relation whose name is not certain is missing: for
// example, a transaction that has not ended renames it. A name that was read in the last 10 seconds is not read again.
func (r *NameReader) Names(database uint32, relations []uint32) map[uint32]string {
	now := time.Now()
	names := make(map[uint32]string, len(relations))
	wanted := make(map[uint32][]string)
	for _, oid := range relations {
		c, ok := r.names[nameKey{database, oid}]
		switch {
		case !ok || now.After(c.until):
			wanted[oid] = nil
		case c.name != "":
			names[oid] = c.name
		}
	}
	if len(wanted) == 0 || database == 0 {
		return names
	}
	if len(r.names) > maxCached {
		clear(r.names)
	}
	err := r.search(database, wanted)
	for oid, found := range wanted {
		c := cached{until: now.Add(keep)}
		if err == nil && len(found) == 1 {
			c.name = found[0]
			names[oid] = c.name
		}
		r.names[nameKey{database, oid}] = c
	}
	return names
}

// search looks for the names of the relations that are the keys of wanted, and adds the names to the values. A relation gets
// all different names in those versions of its row in pg_class that may be the current version.
func (r *NameReader) search(database uint32, wanted map[uint32][]string) error {
	dir := filepath.Join(r.dataDir, "base", strconv.FormatUint(uint64(database), 10))
	file, err := mappedFile(dir, layout.Pages.ClassOID)
	if err != nil {
		return err
	}
	// search reads the buffers before the file. If a page is written to the file and leaves the buffers in between,
	// search has two copies of it. It then uses the older one, from the buffers.
	pages, err := r.buffers(database, file)
	if err != nil {
		return err
	}
	if err := addFile(pages, dir, file); err != nil {
		return err
	}
	for _, page := range pages {
		if err := addNames(page, wanted); err != nil {
			return err
		}
	}
	return nil
}

// addFile adds those pages of a file that the map pages lacks.
func addFile(pages map[uint32][]byte, dir string, file uint32) error {
	all, err := rootfs.ReadIn(dir, strconv.FormatUint(uint64(file), 10), maxFile)
	if err != nil {
		return err
	}
	size := layout.Pages.PageSize
	for block := 0; (block+1)*size <= len(all); block++ {
		if _, ok := pages[uint32(block)]; !ok {
			pages[uint32(block)] = all[block*size : (block+1)*size]
		}
	}
	return nil
}

// mappedFile returns the number of the file of a catalog in a directory, by the directory's pg_filenode.map.
func mappedFile(dir string, catalog uint32) (uint32, error) {
	l := &layout.Pages
	b, err := rootfs.ReadIn(dir, "pg_filenode.map", int64(l.MapSize))
	if err != nil {
		return 0, err
	}
	if len(b) < l.MapEntries || page32(b, 0) != l.MapMagic {
		return 0, errInconsistent
	}
	for i := range int(min(page32(b, l.MapCount), uint32(l.MapSize))) {
		at := l.MapEntries + i*l.MapEntrySize
		if at+l.MapEntrySize > len(b) {
			break
		}
		if page32(b, at) == catalog {
			return page32(b, at+l.MapFile), nil
		}
	}
	return 0, errInconsistent
}

// buffers copies the pages of a database's file that are in the shared buffers. The result has them by block number.
func (r *NameReader) buffers(database, file uint32) (map[uint32][]byte, error) {
	places, err := r.places(database, file)
	if err != nil {
		return nil, err
	}
	pages := make(map[uint32][]byte, len(places))
	for i := range places {
		p := &places[i]
		page, err := r.page(p.descriptor, p.was, p.page)
		if err != nil {
			return nil, err
		}
		if page != nil {
			pages[p.block] = page
		}
	}
	return pages, nil
}

// bufferPlace is a buffer with a page of a file: the addresses of the descriptor and of the page, the content of the descriptor,
// and the number of the page.
type bufferPlace struct {
	descriptor, page uint64
	was              []byte
	block            uint32
}

// places returns the buffers that have the pages of a database's file. The database 0 has the catalogs that all databases share.
func (r *NameReader) places(database, file uint32) ([]bufferPlace, error) {
	l := &layout.Pages
	descriptors, err := r.pointer(r.descriptors)
	if err != nil {
		return nil, err
	}
	blocks, err := r.pointer(r.blocks)
	if err != nil {
		return nil, err
	}
	var number [4]byte
	if err := r.read(r.count, number[:]); err != nil {
		return nil, err
	}
	count := int(page32(number[:], 0))
	if count > cmp.Or(r.most, maxBuffers) {
		return nil, errInconsistent
	}
	var places []bufferPlace
	part := make([]byte, min(count, 1<<14)*l.BufferSize)
	for first := 0; first < count; first += 1 << 14 {
		part = part[:min(count-first, 1<<14)*l.BufferSize]
		if err := r.read(descriptors+uint64(first*l.BufferSize), part); err != nil {
			return nil, err
		}
		for i := 0; i*l.BufferSize < len(part); i++ {
			d := part[i*l.BufferSize:][:l.BufferSize]
			if page32(d, l.BufferFile) != file || page32(d, l.BufferDatabase) != database || page32(d, l.BufferFork) != 0 ||
				page32(d, l.BufferState)&l.BufferValid != l.BufferValid {
				continue
			}
			number := uint64(i) + uint64(first)
			places = append(places, bufferPlace{
				descriptor: descriptors + number*uint64(l.BufferSize), page: blocks + number*uint64(l.PageSize),
				was: slices.Clone(d), block: page32(d, l.BufferBlock),
			})
		}
	}
	return places, nil
}

// page copies a page until two copies are equal and the buffer still has the page. It returns nil if the buffer has another
// page now, and an error if no two copies were equal.
func (r *NameReader) page(descriptor uint64, was []byte, addr uint64) ([]byte, error) {
	const tries = 4
	l := &layout.Pages
	page, again, now := make([]byte, l.PageSize), make([]byte, l.PageSize), make([]byte, l.BufferState)
	for range tries {
		if err := r.read(addr, page); err != nil {
			return nil, err
		}
		if err := r.read(addr, again); err != nil {
			return nil, err
		}
		if err := r.read(descriptor, now); err != nil {
			return nil, err
		}
		if string(now) != string(was[:l.BufferState]) {
			return nil, nil
		}
		if string(page) == string(again) {
			return page, nil
		}
	}
	return nil, errInconsistent
}

// addNames adds names to the values of wanted, whose keys are the oids of relations. The names are from those rows of a page
// that may be the current version of a relation's row.
func addNames(page []byte, wanted map[uint32][]string) error {
	return eachRow(page, func(oid uint32, tuple []byte, name string) error {
		found, ok := wanted[oid]
		if !ok || isDead(tuple) {
			return nil
		}
		if name == "" {
			return errInconsistent
		}
		if len(found) == 0 || len(found) == 1 && found[0] != name {
			wanted[oid] = append(found, name)
		}
		return nil
	})
}

// eachRow calls row for each version of a row on a page of a catalog whose first columns are an oid and a name. The name is empty
// if it has no end.
func eachRow(page []byte, row func(oid uint32, tuple []byte, name string) error) error {
	l := &layout.Pages
	lower, upper := int(page16(page, l.PageLower)), int(page16(page, l.PageUpper))
	if upper == 0 { // a new page
		return nil
	}
	if page16(page, l.PageVersion) != l.PageVersionWord || lower < l.PageItems || lower > upper || upper > len(page) {
		return errInconsistent
	}
	for at := l.PageItems; at+l.ItemSize <= lower; at += l.ItemSize {
		item := page32(page, at)
		if item>>l.ItemFlagsShift&3 != l.ItemNormal {
			continue
		}
		offset, length := int(item&l.ItemMask), int(item>>l.ItemLengthShift)
		if offset < upper || offset+length > len(page) || length < l.TupleHeader {
			return errInconsistent
		}
		tuple := page[offset : offset+length]
		columns := int(tuple[l.TupleHoff])
		if columns < l.TupleHeader || columns+l.ClassName+l.NameSize > length {
			return errInconsistent
		}
		if err := row(page32(tuple, columns), tuple, pageText(tuple[columns+l.ClassName:][:l.NameSize])); err != nil {
			return err
		}
	}
	return nil
}

// isDead reports whether a version of a row is known to be invalid: its insertion was rolled back, or its deletion has
// committed. It uses the flags in which backends that read the row earlier have recorded this.
func isDead(tuple []byte) bool {
	l := &layout.Pages
	mask := page16(tuple, l.TupleInfomask)
	if mask&l.XminInvalid != 0 && mask&l.XminCommitted == 0 { // with both bits, the row is frozen
		return true
	}
	return page32(tuple, l.TupleXmax) != 0 && mask&l.XmaxInvalid == 0 && mask&l.XmaxCommitted != 0 && mask&l.XmaxOnlyLocksIt == 0
}

// pageText returns the text before the first NUL byte, or "" if there is no NUL byte.
func pageText(b []byte) string {
	for i, c := range b {
		if c == 0 {
			if !utf8.Valid(b[:i]) {
				return strings.ToValidUTF8(string(b[:i]), "\uFFFD") // a database with another encoding
			}
			return string(b[:i])
		}
	}
	return ""
}

func (r *NameReader) pointer(addr uint64) (uint64, error) {
	var b [8]byte
	err := r.read(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func (r *NameReader) read(addr uint64, p []byte) error {
	n, err := r.memory.Read(addr, p)
	if r.pid != 0 && errors.Is(err, process.ErrUnreachable) { // a Memory reads no more after a timeout
		r.memory = process.NewMemory(r.pid)
	}
	if err == nil && n < len(p) {
		err = errInconsistent
	}
	return err
}

func page16(b []byte, at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }
func page32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
