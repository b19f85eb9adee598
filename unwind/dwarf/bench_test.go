package dwarf_test

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkFrames looks up the same addresses again and again, as a server's stacks have them, so that all units are
// decoded: of PostgreSQL with debugging information.
func BenchmarkFrames(b *testing.B) {
	bin := os.Getenv("PGSB_DEBUG_BINDIR")
	if bin == "" {
		b.Skip("PGSB_DEBUG_BINDIR is not set (scripts/build-postgresql.sh makes one)")
	}
	file := filepath.Join(bin, "postgres")
	d, addrs := openData(b, file), randomAddresses(b, file, 50)
	for _, addr := range addrs {
		if _, err := d.Frames(addr); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, _ = d.Frames(addrs[i%len(addrs)])
	}
}
