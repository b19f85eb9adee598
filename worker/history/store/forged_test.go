package store_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"pg_stat_backtrace/worker/history/store"
)

// bomb is a codec that calls itself zstd. Its pages decompress to more than their heads say.
type bomb struct {
	compress.Codec
	packed []byte
}

func (bomb) CompressionCodec() format.CompressionCodec { return format.Zstd }

func (b bomb) Encode(_, _ []byte) ([]byte, error) { return bytes.Clone(b.packed), nil }

// packedZeros returns so many zeros, compressed.
func packedZeros(t *testing.T, n int) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(make([]byte, n), nil)
}

// written returns a file with rows, as the recorder describes it, with these further options.
func written[T any](t *testing.T, list []T, options ...parquet.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	about, err := json.Marshal(meta)
	if err != nil {
		t.Fatal(err)
	}
	w := parquet.NewGenericWriter[T](&b, append([]parquet.WriterOption{
		parquet.KeyValueMetadata("pg_stat_backtrace.format_version", "1"),
		parquet.KeyValueMetadata("pg_stat_backtrace.server", string(about)),
		parquet.KeyValueMetadata("system_identifier", meta.SystemID), parquet.Compression(&parquet.Zstd),
	}, options...)...)
	if _, err := w.Write(list); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// refooted returns the file with another footer, and with more pages before it.
func refooted(t *testing.T, file, pages []byte, change func(m *format.FileMetaData, pages int64)) []byte {
	t.Helper()
	begin := len(file) - 8 - int(binary.LittleEndian.Uint32(file[len(file)-8:]))
	var m format.FileMetaData
	if err := thrift.Unmarshal(new(thrift.CompactProtocol), file[begin:len(file)-8], &m); err != nil {
		t.Fatal(err)
	}
	change(&m, int64(begin))
	footer, err := thrift.Marshal(new(thrift.CompactProtocol), &m)
	if err != nil {
		t.Fatal(err)
	}
	return withFooter(append(bytes.Clone(file[:begin]), pages...), footer)
}

func withFooter(file, footer []byte) []byte {
	file = append(file, footer...)
	return append(binary.LittleEndian.AppendUint32(file, uint32(len(footer))), "PAR1"...)
}

// page returns a page.
func page(t *testing.T, h *format.PageHeader, plain []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := z.EncodeAll(plain, nil)
	h.CompressedPageSize = int32(len(packed))
	if h.UncompressedPageSize == 0 {
		h.UncompressedPageSize = int32(len(plain))
	}
	b, err := thrift.Marshal(new(thrift.CompactProtocol), h)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, packed...)
}

func dataPage(values int32, encoding format.Encoding) *format.PageHeader {
	h := &format.PageHeader{Type: format.DataPageV2}
	h.DataPageHeaderV2.Valid = true
	h.DataPageHeaderV2.V = format.DataPageHeaderV2{NumValues: values, NumRows: values, Encoding: encoding}
	return h
}

func dictionary(values int32) *format.PageHeader {
	h := &format.PageHeader{Type: format.DictionaryPage}
	h.DictionaryPageHeader.Valid = true
	h.DictionaryPageHeader.V = format.DictionaryPageHeader{NumValues: values, Encoding: format.Plain}
	return h
}

// TestForged has files whose format is right, and whose contents are meant to take all memory or time, or to show something false. Each
// is reported with its name and reason. The other hours are read.
func TestForged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(21, 22))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w := open(t, dir)
	for i := range 3 {
		if err := w.Append(sweep(random, from.Add(time.Duration(i)*time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	path := filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28/hour=00/rows.parquet")
	honest := written(t, []store.Row{{Time: from.UnixMicro(), PID: 1}})
	few := []store.Row{{Time: from.UnixMicro(), PID: 1, Query: "x"}}
	// column replaces the pages of a column, of the time unless another number is given.
	column := func(number int, values int64, pages ...[]byte) []byte {
		all := bytes.Join(pages, nil)
		return refooted(t, honest, all, func(m *format.FileMetaData, at int64) {
			c := &m.RowGroups[0].Columns[number].MetaData
			c.DictionaryPageOffset, c.DataPageOffset = 0, at
			c.TotalCompressedSize, c.NumValues = int64(len(all)), values
		})
	}
	footer := func(change func(m *format.FileMetaData)) []byte {
		return refooted(t, honest, nil, func(m *format.FileMetaData, _ int64) { change(m) })
	}
	run := binary.AppendUvarint([]byte{1}, 1<<31-2) // of one value, in a page of indexes of one bit
	long := bytes.Repeat([]byte("a"), 33<<20)
	const huge = 1 << 40
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"snappy":    {written(t, few, parquet.Compression(&parquet.Snappy)), "compression SNAPPY"},
		"gzip":      {written(t, few, parquet.Compression(&parquet.Gzip)), "compression GZIP"},
		"lz4":       {written(t, few, parquet.Compression(&parquet.Lz4Raw)), "compression LZ4_RAW"},
		"zstd":      {written(t, few, parquet.Compression(bomb{&parquet.Zstd, packedZeros(t, 66<<20)})), "decompressed size exceeds"},
		"long text": {written(t, []store.Row{{Time: from.UnixMicro(), Query: string(long)}}), "bad footer"},
		"other type": {written(t, []struct {
			Time string `parquet:"time"`
			PID  string `parquet:"pid"`
		}{{"x", "y"}}), path},
		"deep": {footer(func(m *format.FileMetaData) {
			m.Schema = make([]format.SchemaElement, 100_000)
			for i := range m.Schema {
				m.Schema[i].Name = "x"
				m.Schema[i].NumChildren.Valid, m.Schema[i].NumChildren.V = true, 1
			}
		}), "100000 columns"},
		"rows":            {footer(func(m *format.FileMetaData) { m.NumRows, m.RowGroups[0].NumRows = huge, huge }), "rows in a group"},
		"negative rows":   {footer(func(m *format.FileMetaData) { m.NumRows, m.RowGroups[0].NumRows = -1, -1 }), "rows in a group"},
		"negative offset": {footer(func(m *format.FileMetaData) { m.RowGroups[0].Columns[0].MetaData.DataPageOffset = -5 }), "outside of the file"},
		"far offset": {footer(func(m *format.FileMetaData) {
			m.RowGroups[0].Columns[3].MetaData.DataPageOffset, m.RowGroups[0].Columns[3].MetaData.DictionaryPageOffset = huge, huge
		}), "outside of the file"},
		"far end":         {footer(func(m *format.FileMetaData) { m.RowGroups[0].Columns[3].MetaData.TotalCompressedSize = huge }), "outside of the file"},
		"dictionary":      {column(0, 1, page(t, dictionary(1e9), make([]byte, 8))), "a dictionary of 1000000000 entries"},
		"values":          {column(0, 1<<31-1, page(t, dataPage(1<<31-1, format.Plain), make([]byte, 8))), "a page of"},
		"run":             {column(0, 1, page(t, dictionary(1), make([]byte, 8)), page(t, dataPage(1, format.RLEDictionary), append(run, 0))), "has more"},
		"delta":           {column(0, 1, page(t, dataPage(1, format.DeltaBinaryPacked), []byte{128, 1, 4, 0xff, 0xff, 0xff, 0x7f, 0})), "a page of 1 values has"},
		"prefixes":        {column(3, 1, page(t, dataPage(1, format.DeltaByteArray), make([]byte, 8))), "encoding DELTA_BYTE_ARRAY"},
		"page size":       {column(0, 1, page(t, &format.PageHeader{Type: format.DictionaryPage, UncompressedPageSize: 1<<31 - 1}, nil)), "a page of"},
		"more values":     {column(0, 1, page(t, dataPage(2, format.Plain), make([]byte, 16))), "more values"},
		"page head":       {column(0, 1, []byte{0x15, 0, 0x18, 0xff, 0xff, 0xff, 0xff, 7, 0}), "bad Thrift data"},
		"footer's length": {append(append(bytes.Clone(honest[:len(honest)-8]), 0xff, 0xff, 0xff, 0xff), "PAR1"...), "bad footer"},
		"list":            {withFooter([]byte("PAR1"), []byte{0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 7}), "bad Thrift data"},
		"structures":      {withFooter([]byte("PAR1"), bytes.Repeat([]byte{0x1c}, 1<<20)), "structures within structures"},
		"other server":    {written(t, few, parquet.KeyValueMetadata("system_identifier", "5")), "another server"},
		"newer":           {written(t, few, parquet.KeyValueMetadata("pg_stat_backtrace.format_version", "2")), "this program reads format 1"},
	} {
		if err := os.WriteFile(path, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		forged, others := 0, 0
		err = r.Rows(t.Context(), from, from.Add(3*time.Hour), func(row *store.Row) error {
			if row.Time < from.Add(time.Hour).UnixMicro() {
				forged++
			} else {
				others++
			}
			return nil
		})
		runtime.ReadMemStats(&after)
		if err != nil || forged > 0 || others == 0 {
			t.Errorf("%s: %v, %d forged rows, %d others", name, err, forged, others)
		}
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 200 {
			t.Errorf("%s: %d MB of memory were used", name, used)
		}
		if len(r.Damage) != 1 || !strings.Contains(r.Damage[0].Error(), path) || !strings.Contains(r.Damage[0].Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, r.Damage, c.want)
		}
	}
}

// TestTimesOfOtherHours has rows with times that are not in their hour: they are not shown.
func TestTimesOfOtherHours(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(23, 24))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w := open(t, dir)
	for i := range 2 {
		if err := w.Append(sweep(random, from.Add(time.Duration(i)*time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	path := filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28/hour=00/rows.parquet")
	future := from.Add(90 * time.Minute)
	if err := os.WriteFile(path, written(t, []store.Row{{Time: from.UnixMicro(), PID: 1}, {Time: future.UnixMicro(), PID: 2}}), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows(t, r, from, from.Add(3*time.Hour)) {
		if row.Time == future.UnixMicro() {
			t.Error("a row of the hour from 0 to 1 has a time after it, and is shown")
		}
	}
}

// TestHourTwice has the journal of an hour that is closed, as after a kill of the worker between the two.
func TestHourTwice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(25, 26))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w := open(t, dir)
	for i := range 5 {
		if err := w.Append(sweep(random, from.Add(time.Duration(i)*time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	journal := filepath.Join(dir, "cluster="+meta.SystemID, "journal")
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	count := func() int {
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		samples := int64(0)
		err = r.Sums(t.Context(), store.SumOptions{Since: from, Until: from.Add(time.Hour)}, func(s *store.Sum) error {
			samples += s.Samples
			return nil
		})
		if n := len(rows(t, r, from, from.Add(time.Hour))); err != nil || int64(n) != samples {
			t.Errorf("%d rows, and sums of %d, %v", n, samples, err)
		}
		sweeps := 0
		err = r.Sweeps(t.Context(), from, from.Add(time.Hour), func(store.SweepInfo) error { sweeps++; return nil })
		if err != nil || sweeps != 5 {
			t.Errorf("%d sweeps: %v", sweeps, err)
		}
		return int(samples)
	}
	want := count()
	open(t, dir).Close() // closes the hour, which is over
	if _, err := os.Stat(journal); err == nil || count() != want {
		t.Fatalf("%v, %d rows of %d", err, count(), want)
	}
	if err := os.WriteFile(journal, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != want {
		t.Errorf("%d rows of %d while the journal is there too", n, want)
	}
	if err := os.Remove(filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28/hour=00/rows.parquet")); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != want {
		t.Errorf("%d rows of %d while the file of rows, which is the last one of an hour, is missing", n, want)
	}
	open(t, dir).Close()
	if n := count(); n != want {
		t.Errorf("%d rows of %d after the hour was closed again", n, want)
	}
}

// TestHourCannotBeClosed has an hour whose folder cannot be made for a while. Its sweeps are kept, and recording continues by itself.
func TestHourCannotBeClosed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(27, 28))
	at := time.Date(2026, 11, 28, 0, 59, 50, 0, time.UTC)
	w := open(t, dir)
	next := func() error {
		at = at.Add(time.Second)
		return w.Append(sweep(random, at))
	}
	for range 5 {
		if err := next(); err != nil {
			t.Fatal(err)
		}
	}
	day := filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28")
	if err := os.WriteFile(day, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	at = at.Add(10 * time.Second) // the next hour
	lost := 0
	for range 10 {
		if next() != nil {
			lost++
		}
	}
	if err := os.Remove(day); err != nil {
		t.Fatal(err)
	}
	at = at.Add(time.Minute)
	for range 5 {
		if err := next(); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	sweeps, counted := 0, 0
	err = r.Sweeps(t.Context(), at.Add(-time.Hour), at.Add(time.Second), func(s store.SweepInfo) error {
		sweeps++
		counted += int(s.Lost)
		return nil
	})
	if err != nil || lost != 10 || sweeps != 10 || counted != lost || len(r.Damage) > 0 {
		t.Errorf("%d lost, %d sweeps, %d counted as lost, %v, %v", lost, sweeps, counted, err, r.Damage)
	}
}
