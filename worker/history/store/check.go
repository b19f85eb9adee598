package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// The library for Parquet allocates what a file asks for: a forged file of a few bytes could make it take all memory and end the
// program. So this file checks the parts of a file before the library reads them. It accepts only what this package writes: zstd,
// pages of version 2, and few encodings.

// Bounds of a Parquet file, far above those of a file that this package writes.
const (
	maxFooter     = 32 << 20 // the statistics have texts
	maxPageHeader = 64 << 10
	maxDepth      = 16      // of structures in a footer
	maxItems      = 500_000 // of all lists in a footer
	maxColumns    = 128
	maxGroups     = 10_000
	maxGroupRows  = 2 << 20
	maxPage       = 64 << 20 // uncompressed
	maxPageValues = 8 << 20
	maxTextBytes  = 64 << 10 // of a text of a dictionary
	maxListed     = 1 << 30  // bytes of the texts of a column of lists
	maxBatch      = 1024     // rows that are read at a time
	batchTexts    = 256 << 20
)

var errBounds = errors.New("it is forged or damaged")

func beyond(text string, args ...any) error {
	return fmt.Errorf("%w: "+text, append([]any{errBounds}, args...)...)
}

// A thriftScan walks over a value of Thrift's compact protocol, and verifies that it is within its bytes and bounds.
type thriftScan struct {
	b     []byte
	items int
}

// The types of the compact protocol.
const (
	thriftTrue, thriftFalse, thriftByte, thriftDouble, thriftBinary = 1, 2, 3, 7, 8
	thriftList, thriftSet, thriftMap, thriftStruct, thriftUUID      = 9, 10, 11, 12, 13
)

var errThrift = fmt.Errorf("%w: bad Thrift data", errBounds)

func (s *thriftScan) number() (uint64, error) {
	v, n := binary.Uvarint(s.b)
	if n <= 0 {
		return 0, errThrift
	}
	s.b = s.b[n:]
	return v, nil
}

func (s *thriftScan) skip(n uint64) error {
	if n > uint64(len(s.b)) {
		return errThrift
	}
	s.b = s.b[n:]
	return nil
}

func (s *thriftScan) octet() (byte, error) {
	if len(s.b) == 0 {
		return 0, errThrift
	}
	v := s.b[0]
	s.b = s.b[1:]
	return v, nil
}

// structure walks over the fields of a structure.
func (s *thriftScan) structure(depth int) error {
	if depth > maxDepth {
		return beyond("structures within structures")
	}
	for {
		head, err := s.octet()
		if err != nil || head == 0 {
			return err
		}
		if head>>4 == 0 { // the number of the field follows
			if _, err := s.number(); err != nil {
				return err
			}
		}
		if kind := head & 0xf; kind != thriftTrue && kind != thriftFalse {
			if err := s.value(kind, depth); err != nil {
				return err
			}
		}
	}
}

// value walks over a value that is not a boolean field.
func (s *thriftScan) value(kind byte, depth int) error {
	switch kind {
	case thriftTrue, thriftFalse, thriftByte:
		return s.skip(1)
	case thriftDouble:
		return s.skip(8) //nolint:mnd // bytes
	case thriftUUID:
		return s.skip(16) //nolint:mnd // bytes
	case thriftBinary:
		n, err := s.number()
		if err != nil {
			return err
		}
		return s.skip(n)
	case thriftList, thriftSet:
		return s.list(depth)
	case thriftStruct:
		return s.structure(depth + 1)
	case thriftMap:
		return errThrift // Parquet has none
	}
	if kind > thriftUUID {
		return errThrift
	}
	_, err := s.number()
	return err
}

// list walks over the elements of a list.
func (s *thriftScan) list(depth int) error {
	head, err := s.octet()
	if err != nil {
		return err
	}
	const long = 15
	n := uint64(head >> 4)
	if n == long {
		if n, err = s.number(); err != nil {
			return err
		}
	}
	if n > uint64(len(s.b)) { // an element has at least one byte
		return errThrift
	}
	if s.items += int(n); s.items > maxItems {
		return beyond("too many elements")
	}
	for range n {
		if err := s.value(head&0xf, depth); err != nil {
			return err
		}
	}
	return nil
}

// decodeThrift decodes a structure at the begin of some bytes, and returns the number of its bytes.
func decodeThrift(b []byte, into any) (int, error) {
	s := thriftScan{b: b}
	if err := s.structure(0); err != nil {
		return 0, err
	}
	n := len(b) - len(s.b)
	if err := thrift.Unmarshal(new(thrift.CompactProtocol), b[:n], into); err != nil {
		return 0, fmt.Errorf("%w: %w", errThrift, err)
	}
	return n, nil
}

// A parquetFile is an open file whose footer was checked. checkGroup must be called before the pages of a group are read.
type parquetFile struct {
	file   *os.File
	size   int64
	path   string
	meta   format.FileMetaData
	parsed *parquet.File
	groups []parquet.RowGroup
	zstd   *zstd.Decoder
	packed []byte
	plain  []byte
}

// openParquet opens a file, checks its footer, and verifies that it is of this format and cluster.
func openParquet(path string) (p *parquetFile, err error) {
	file, size, err := open(path)
	if err != nil {
		return nil, err
	}
	p = &parquetFile{file: file, size: size, path: path}
	if err := p.guard(p.parse); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *parquetFile) close() {
	if p.zstd != nil {
		p.zstd.Close()
	}
	p.file.Close()
}

// guard calls f, which uses the Parquet library. A panic of f becomes an error. Errors of the caller's callback (see errEach) and
// of a context stay as they are. Other errors wrap ErrFile and name the file.
func (p *parquetFile) guard(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("%w: %s: %v", ErrFile, p.path, value)
		}
	}()
	err = f()
	switch {
	case err == nil, errors.Is(err, ErrFile), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, errEach):
		return errors.Unwrap(err)
	}
	return fmt.Errorf("%w: %s: %w", ErrFile, p.path, err)
}

func (p *parquetFile) parse() error {
	const tail = 8 // the length of the footer, and the magic
	var end [tail]byte
	if p.size < 2*tail {
		return beyond("it is too short")
	}
	if _, err := p.file.ReadAt(end[:], p.size-tail); err != nil {
		return err
	}
	n := int64(binary.LittleEndian.Uint32(end[:]))
	if string(end[tail/2:]) != "PAR1" || n > maxFooter || n > p.size-2*tail+tail/2 {
		return beyond("bad footer")
	}
	footer := make([]byte, n)
	if _, err := p.file.ReadAt(footer, p.size-tail-n); err != nil {
		return err
	}
	switch used, err := decodeThrift(footer, &p.meta); {
	case err != nil:
		return err
	case used != len(footer):
		return beyond("bytes after its metadata")
	case len(p.meta.Schema) > maxColumns || len(p.meta.RowGroups) > maxGroups:
		return beyond("%d columns, %d row groups", len(p.meta.Schema), len(p.meta.RowGroups))
	}
	if v := p.lookup("pg_stat_backtrace.format_version"); v != strconv.Itoa(Version) {
		return fmt.Errorf("%w: %s has format %q, and this program reads format %d", ErrFile, p.path, v, Version)
	}
	id := strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(p.path)))), "cluster=")
	if own := p.lookup("system_identifier"); systemID.MatchString(id) && own != id {
		return fmt.Errorf("it is of another server, with the system identifier %q", own)
	}
	rows := int64(0)
	for i := range p.meta.RowGroups {
		g := &p.meta.RowGroups[i]
		if g.NumRows < 0 || g.NumRows > maxGroupRows || len(g.Columns) > maxColumns {
			return beyond("%d rows in a group", g.NumRows)
		}
		rows += g.NumRows
		for j := range g.Columns {
			if err := p.checkChunk(&g.Columns[j].MetaData); err != nil {
				return err
			}
		}
	}
	if rows != p.meta.NumRows {
		return beyond("%d rows, and %d in its groups", p.meta.NumRows, rows)
	}
	parsed, err := parquet.OpenFile(p.file, p.size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return err
	}
	p.parsed, p.groups = parsed, parsed.RowGroups()
	return nil
}

// lookup returns an entry of the metadata.
func (p *parquetFile) lookup(key string) string {
	for i := range p.meta.KeyValueMetadata {
		if kv := &p.meta.KeyValueMetadata[i]; kv.Key == key {
			return kv.Value
		}
	}
	return ""
}

// checkChunk verifies the place and the compression of a column.
func (p *parquetFile) checkChunk(m *format.ColumnMetaData) error {
	begin := chunkBegin(m)
	switch {
	case m.Codec != format.Zstd && m.Codec != format.Uncompressed:
		return beyond("compression %s", m.Codec)
	case begin < 0 || m.TotalCompressedSize < 0 || begin > p.size || m.TotalCompressedSize > p.size-begin:
		return beyond("a column outside of the file")
	case m.NumValues < 0:
		return beyond("%d values", m.NumValues)
	}
	return nil
}

func chunkBegin(m *format.ColumnMetaData) int64 {
	if m.DictionaryPageOffset > 0 && m.DictionaryPageOffset < m.DataPageOffset {
		return m.DictionaryPageOffset
	}
	return m.DataPageOffset
}

// integers returns the smallest and the largest value of a column of integers in a row group, if the file has this statistic.
func (p *parquetFile) integers(group, column int) (lo, hi int64, ok bool) {
	g := &p.meta.RowGroups[group]
	if column >= len(g.Columns) {
		return 0, 0, false
	}
	s := &g.Columns[column].MetaData.Statistics
	const four, eight = 4, 8
	switch {
	case len(s.MinValue) == eight && len(s.MaxValue) == eight:
		return int64(binary.LittleEndian.Uint64(s.MinValue)), int64(binary.LittleEndian.Uint64(s.MaxValue)), true
	case len(s.MinValue) == four && len(s.MaxValue) == four:
		return int64(int32(binary.LittleEndian.Uint32(s.MinValue))), int64(int32(binary.LittleEndian.Uint32(s.MaxValue))), true
	}
	return 0, 0, false
}

// checkGroup verifies the pages of the columns with these names in a row group; without names, of all columns. It returns an upper
// limit of the bytes of text that one row takes from the dictionaries of these columns.
func (p *parquetFile) checkGroup(group int, names ...string) (texts int, err error) {
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	g := &p.meta.RowGroups[group]
	for i := range g.Columns {
		m := &g.Columns[i].MetaData
		if len(names) > 0 && (len(m.PathInSchema) == 0 || !wanted[m.PathInSchema[0]]) {
			continue
		}
		longest, err := p.checkPages(m)
		if err == nil && len(m.PathInSchema) > 1 && int64(longest) > maxListed/max(1, m.NumValues) {
			err = beyond("%d texts of up to %d bytes", m.NumValues, longest)
		}
		if err != nil {
			return 0, fmt.Errorf("column %q: %w", m.PathInSchema, err)
		}
		texts += longest
	}
	return texts, nil
}

// checkPages verifies the pages of a column, and returns the length of the longest text in its dictionary.
func (p *parquetFile) checkPages(m *format.ColumnMetaData) (longest int, err error) {
	at, end := chunkBegin(m), chunkBegin(m)+m.TotalCompressedSize
	values := int64(0)
	for at < end {
		head := make([]byte, min(maxPageHeader, end-at))
		if _, err := p.file.ReadAt(head, at); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		var h format.PageHeader
		n, err := decodeThrift(head, &h)
		if err != nil {
			return 0, err
		}
		at += int64(n)
		size := int64(h.CompressedPageSize)
		if size < 0 || size > end-at || size > maxPage || h.UncompressedPageSize < 0 || h.UncompressedPageSize > maxPage {
			return 0, beyond("a page of %d bytes, %d uncompressed", h.CompressedPageSize, h.UncompressedPageSize)
		}
		p.packed = sized(p.packed, int(size))
		if _, err := p.file.ReadAt(p.packed, at); err != nil {
			return 0, err
		}
		at += size
		if n, err = p.checkPage(m, &h); err != nil {
			return 0, err
		}
		if values += int64(n); values > m.NumValues {
			return 0, beyond("more values than the column has")
		}
		if h.Type == format.DictionaryPage && m.Type == format.ByteArray {
			if longest, err = longestText(p.plain); err != nil {
				return 0, err
			}
		}
	}
	return longest, nil
}

// longestText returns the length of the longest text of a dictionary.
func longestText(b []byte) (longest int, err error) {
	const length = 4
	for len(b) > 0 {
		if len(b) < length {
			return 0, beyond("a text is cut")
		}
		n := int64(binary.LittleEndian.Uint32(b))
		if n > int64(len(b)-length) || n > maxTextBytes {
			return 0, beyond("a text of %d bytes", n)
		}
		longest, b = max(longest, int(n)), b[length+n:]
	}
	return longest, nil
}

func sized(b []byte, n int) []byte {
	if cap(b) < n {
		b = make([]byte, n)
	}
	return b[:n]
}

// checkPage verifies the page in p.packed, and returns the number of its values; for a page with a dictionary, 0.
func (p *parquetFile) checkPage(m *format.ColumnMetaData, h *format.PageHeader) (int, error) {
	switch {
	case h.Type == format.DictionaryPage && h.DictionaryPageHeader.Valid:
		d := &h.DictionaryPageHeader.V
		plain := d.Encoding == format.Plain || d.Encoding == format.PlainDictionary //nolint:staticcheck // older writers use it
		if d.NumValues < 0 || d.NumValues > h.UncompressedPageSize || !plain {
			return 0, beyond("a dictionary of %d entries", d.NumValues)
		}
		return 0, p.unpack(m, p.packed, int(h.UncompressedPageSize))
	case h.Type != format.DataPageV2 || !h.DataPageHeaderV2.Valid:
		return 0, beyond("a page of type %s", h.Type)
	}
	d := &h.DataPageHeaderV2.V
	repeated, defined := int(d.RepetitionLevelsByteLength), int(d.DefinitionLevelsByteLength)
	n := int(d.NumValues)
	if n < 0 || n > maxPageValues || d.NumRows < 0 || repeated < 0 || defined < 0 || repeated+defined > len(p.packed) {
		return 0, beyond("a page of %d values", n)
	}
	if err := errors.Join(checkRuns(p.packed[:repeated], 1, n), checkRuns(p.packed[repeated:repeated+defined], 1, n)); err != nil {
		return 0, err
	}
	if err := p.unpack(m, p.packed[repeated+defined:], int(h.UncompressedPageSize)-repeated-defined); err != nil {
		return 0, err
	}
	return n, p.checkValues(d.Encoding, n)
}

// unpack decompresses a page into p.plain. It returns an error unless the result has exactly size bytes.
func (p *parquetFile) unpack(m *format.ColumnMetaData, b []byte, size int) (err error) {
	if m.Codec == format.Uncompressed {
		if p.plain = append(p.plain[:0], b...); len(b) != size {
			return beyond("a page has another size")
		}
		return nil
	}
	if len(b) == 0 && size == 0 {
		p.plain = p.plain[:0]
		return nil
	}
	if p.zstd == nil {
		if p.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPage)); err != nil {
			return err
		}
	}
	p.plain, err = p.zstd.DecodeAll(b, sized(p.plain, max(0, size))[:0])
	if err == nil && len(p.plain) != size {
		err = beyond("a page has %d bytes, and its head says %d", len(p.plain), size)
	}
	return err
}

// checkValues verifies that the bytes in p.plain have as many values as the head of their page says.
func (p *parquetFile) checkValues(encoding format.Encoding, n int) error {
	switch encoding { //nolint:exhaustive // the others are refused below
	case format.Plain:
		return nil // a value has at least a bit
	case format.RLEDictionary, format.PlainDictionary: //nolint:staticcheck // older writers use it
		if len(p.plain) == 0 {
			return nil
		}
		return checkRuns(p.plain[1:], int(p.plain[0]), n)
	case format.DeltaBinaryPacked, format.DeltaLengthByteArray: // not DeltaByteArray, in which a text can take from all before it
		s := thriftScan{b: p.plain} // this encoding writes numbers in the form that thriftScan reads
		var head [3]uint64          // size of a block, parts of a block, number of values
		for i := range head {
			v, err := s.number()
			if err != nil {
				return err
			}
			head[i] = v
		}
		if head[2] > uint64(n) || head[0] > maxPageHeader || head[1] > head[0] {
			return beyond("a page of %d values has %d", n, head[2])
		}
		return nil
	}
	return beyond("encoding %s", encoding)
}

// checkRuns verifies the runs of values of the RLE encoding.
func checkRuns(b []byte, width, n int) error {
	const most, group = 32, 8
	if width > most {
		return beyond("values of %d bits", width)
	}
	s := thriftScan{b: b}
	for left := uint64(n) + group; len(s.b) > 0; {
		head, err := s.number()
		if err != nil {
			return err
		}
		count, size := head>>1, uint64(width+group-1)/group
		if head&1 != 0 { // groups of values, one after the other
			count, size = min(count, maxPageValues)*group, min(count, maxPageValues)*uint64(width)
		}
		if count > left {
			return beyond("a page of %d values has more", n)
		}
		left -= count
		if err := s.skip(size); err != nil {
			return err
		}
	}
	return nil
}
