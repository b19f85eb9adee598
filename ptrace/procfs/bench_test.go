package procfs

import (
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
