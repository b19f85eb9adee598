package dwarf

import (
	"os"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/unwind/elfimage"
)

// largestShare is the largest part of its limit of decoded data that a file may use. The limit is for hostile files.
const largestShare = 0.25

// TestShareOfEffort measures which part of its limit each real file uses when 4,000 addresses all over its code are looked
// up, with a small cache, so that parts are decoded again.
func TestShareOfEffort(t *testing.T) {
	list := os.Getenv("PGSB_EFFORT_FILES")
	if list == "" {
		t.Skip("PGSB_EFFORT_FILES is not set: files with debugging information, separated by colons")
	}
	for file := range strings.SplitSeq(list, ":") {
		for cache, size := range map[string]int{"default cache": 0, "a quarter of it": DefaultCacheSize / 4} {
			used, limit, addresses, took := share(t, file, size)
			if limit == 0 {
				continue
			}
			part := float64(used) / float64(limit)
			t.Logf("%6.2f %% of %d MB, %d addresses, %s, %s: %s", 100*part, limit>>20, addresses, took.Round(time.Millisecond),
				cache, file)
			if part > largestShare {
				t.Errorf("%s, %s: %.0f %% of the limit", file, cache, 100*part)
			}
		}
	}
}

// share returns what the lookups of one file have used, what they may use, how many there were, and how long they took.
func share(t *testing.T, file string, cache int) (used, limit int64, addresses int, took time.Duration) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	m, err := elfimage.Open(f, file)
	if err != nil {
		t.Fatal(err)
	}
	spill := func() (SpillFile, error) { return os.CreateTemp(t.TempDir(), "section") }
	d, err := New(m, Options{Cache: NewCache(cache), Spill: spill})
	if err != nil {
		t.Logf("%s: %v", file, err)
		return 0, 0, 0, 0
	}
	begin := time.Now()
	const most = 4000
	var code uint64
	for _, s := range m.Segments() {
		if m.Executable(s.Vaddr) {
			code += s.Memsz
		}
	}
	for _, s := range m.Segments() {
		if !m.Executable(s.Vaddr) {
			continue
		}
		for offset := uint64(0); offset < s.Memsz; offset += code/most + 1 {
			if _, err := d.Frames(s.Vaddr + offset); err == nil {
				addresses++
			}
		}
	}
	took = time.Since(begin)
	regained := int64(took.Seconds() * budget.WorkPerSecond)
	return d.effort.Used() + regained, budget.Work.Of(d.effort.Input()), addresses, took
}
