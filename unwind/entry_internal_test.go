package unwind

import (
	"path"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
)

// TestAtEntry checks that functions of real files begin with the return address where a call leaves it, except
// functions that begin with a frame. Compilers move parts of functions elsewhere (.cold), and these begin with a
// frame.
func TestAtEntry(t *testing.T) {
	t.Parallel()
	for _, a := range []*arch.Arch{arch.AMD64, arch.ARM64, arch.RISCV64, arch.S390X} {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			files := imagetest.FilesOf
			if a == arch.AMD64 {
				files = func(t *testing.T, _ *arch.Arch) []string { t.Helper(); return imagetest.Files(t) }
			}
			for _, file := range files(t, a) {
				_, table := imagetest.Open(t, file, a)
				begin, all, frames := 0, 0, 0
				for fde := range table.FDEs {
					row, err := table.Row(fde.Start)
					if err != nil || row.RAUndefined || fde.Signal {
						continue
					}
					if all++; atEntry(a, &row) {
						begin++
					}
					later := row
					for err == nil && later.CFA == row.CFA && later.End < fde.End {
						later, err = table.Row(later.End)
					}
					if err != nil || later.CFA == row.CFA || later.CFA.Kind != cfi.RuleRegister {
						continue
					}
					if frames++; atEntry(a, &later) {
						t.Errorf("%#x has a frame", later.Start)
					}
				}
				figure.Printf(t, "%s: %d of %d functions begin so, %d of all have a frame", path.Base(file), begin, all, frames)
				if begin*4 < all*3 || frames*4 < all {
					t.Errorf("%d of %d, %d frames", begin, all, frames)
				}
			}
		})
	}
}
