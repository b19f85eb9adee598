package symbol_test

import (
	"os"
	"runtime"
	"testing"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// benchImage is the largest of the oracle's files, which is usually a postgres.
func benchImage(b *testing.B) *elfimage.Image {
	b.Helper()
	path, size := "", int64(0)
	for _, p := range oracleFiles(b) {
		if info, err := os.Stat(p); err == nil && info.Size() > size {
			path, size = p, info.Size()
		}
	}
	b.Logf("%s, %d bytes", path, size)
	return openImage(b, path)
}

func BenchmarkNewTable(b *testing.B) {
	m := benchImage(b)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept, err := symbol.NewTable(m)
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := symbol.NewTable(m); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(kept.Len()), "functions")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc), "kept-bytes")
}

func BenchmarkLookup(b *testing.B) {
	table, err := symbol.NewTable(benchImage(b))
	if err != nil {
		b.Fatal(err)
	}
	addrs := make([]uint64, 0, table.Len())
	for s := range table.All() {
		addrs = append(addrs, s.Addr+s.Size/2)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 7919) % len(addrs)
		if _, ok := table.Lookup(addrs[i], 0, 0); !ok {
			b.Fatalf("%#x has no name", addrs[i])
		}
	}
}
