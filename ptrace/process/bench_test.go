package process

import (
	"fmt"
	"os"
	"testing"
)

func BenchmarkMaps(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Maps(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadStat(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadStat(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadStatus(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadStatus(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseMaps parses as many lines as a server has.
func BenchmarkParseMaps(b *testing.B) {
	var text []byte
	for i := range 102 {
		text = fmt.Appendf(text, "%xf8a600000-%[1]xf8a7d8000 r-xp 00026000 fe:00 1837                       %s\n",
			0x100+i, "/usr/lib/x86_64-linux-gnu/libc.so.6")
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseMaps(text); err != nil {
			b.Fatal(err)
		}
	}
}
