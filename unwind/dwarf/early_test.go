package dwarf

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/elfimage"
)

// isShared reports whether shared created a file.
func isShared(name string) bool { return strings.HasPrefix(filepath.Base(name), "dwz-") }

// shared makes a copy of a debug file, in which dwz has moved common entries to partial units.
func shared(t *testing.T, name string) string {
	t.Helper()
	plain, out := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "dwz-"+filepath.Base(name))
	for _, args := range [][]string{
		{"objcopy", "--decompress-debug-sections", name, plain}, {"dwz", "-o", out, plain},
		{"objcopy", "--compress-debug-sections=zlib", out},
	} {
		if said, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, said)
		}
	}
	return out
}

// TestEarly compares the answers while the units of a large compressed file are being listed with the answers
// afterwards.
func TestEarly(t *testing.T) {
	found, _ := filepath.Glob("/usr/lib/debug/.build-id/*/*.debug")
	tried := 0
	for i := 0; i < len(found); i++ {
		name := found[i]
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		m, err := elfimage.Open(f, name)
		if err != nil {
			t.Fatal(err)
		}
		open := func() *Data {
			d, err := New(m, Options{Spill: func() (SpillFile, error) { return os.CreateTemp(t.TempDir(), "spill") }})
			if err != nil || d.sections.info.spill == nil {
				return nil
			}
			return d
		}
		one, other := open(), open()
		if one == nil || other == nil {
			continue
		}
		tried++
		if info, err := f.Stat(); err == nil && info.Size() > minSpill && !slices.ContainsFunc(found, isShared) {
			found = append(found, shared(t, name))
		}
		if err := other.Load(); err != nil {
			t.Fatal(err)
		}
		compareEarly(t, name, one, other)
		compareBusy(t, name, open(), other)
	}
	if tried == 0 {
		t.Skip("no large compressed debug file is installed (Debian: libc6-dbg)")
	}
}

// compareBusy looks addresses up while the units are being listed, several at a time.
func compareBusy(t *testing.T, name string, busy, other *Data) {
	t.Helper()
	var all sync.WaitGroup
	all.Go(func() { _ = busy.Load() })
	spans := other.index.spans
	for k := range 4 {
		all.Go(func() {
			for i := k; i < len(spans); i += 40 {
				want, _ := other.Frames(spans[i].low)
				if got, err := busy.Frames(spans[i].low); !reflect.DeepEqual(got, want) {
					t.Errorf("%s: %#x: %+v, %v, not %+v", name, spans[i].low, got, err, want)
				}
			}
		})
	}
	all.Wait()
}

// compareEarly looks up the ends and the middle of every fourth range of the units.
func compareEarly(t *testing.T, name string, one, other *Data) {
	t.Helper()
	known, total := 0, 0
	for i := 0; i < len(other.index.spans); i += 4 {
		s := other.index.spans[i]
		for _, addr := range []uint64{s.low, (s.low + s.high) / 2, s.high - 1} {
			want, _ := other.Frames(addr)
			got, err := one.earlyFrames(addr)
			total++
			if len(got) > 0 {
				known++
			}
			if len(got) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: %#x: %+v, %v, later %+v", name, addr, got, err, want)
			}
		}
	}
	figure.Printf(t, "%s: %d of %d addresses known early, all alike", filepath.Base(name), known, total)
	if one.loaded.Load() {
		t.Errorf("%s: the units were listed nevertheless", name)
	}
	if known*10 < total*9 {
		t.Errorf("%d of %d", known, total)
	}
}
