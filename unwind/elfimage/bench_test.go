package elfimage_test

import (
	"os"
	"testing"

	"pg_stat_backtrace/unwind/elfimage"
)

// benchFile is the largest of the real files, which is usually a postgres.
func benchFile(b *testing.B) *os.File {
	b.Helper()
	path, size := "", int64(0)
	for _, p := range realFiles(b) {
		if info, err := os.Stat(p); err == nil && info.Size() > size {
			path, size = p, info.Size()
		}
	}
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close() })
	b.Logf("%s, %d bytes", path, size)
	return f
}

func BenchmarkOpen(b *testing.B) {
	f := benchFile(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := elfimage.Open(f, f.Name()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCFISections(b *testing.B) {
	f := benchFile(b)
	b.ReportAllocs()
	for b.Loop() {
		m, err := elfimage.Open(f, f.Name())
		if err != nil {
			b.Fatal(err)
		}
		if _, err = m.CFISections(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSymbols(b *testing.B) {
	f := benchFile(b)
	m, err := elfimage.Open(f, f.Name())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		symbols, err := m.Symbols(".dynsym")
		if err != nil {
			b.Skip("no .dynsym in the largest file")
		}
		for range symbols {
			n++
		}
	}
}
