package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// openOwnMaps skips the test, with the reason, on kernels without the query.
func openOwnMaps(t testing.TB) *MapsFile {
	t.Helper()
	f, err := OpenMaps(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if _, err := f.At(0); errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	return f
}

// startCat starts a process and waits until its mappings are complete: its loader is done, and it answers.
func startCat(t *testing.T) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), "cat")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	line := []byte("line\n")
	if _, err := in.Write(line); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatal(err)
	}
	return command
}

// TestMapsFile compares the kernel's answers for single mappings with the complete list, for every mapping and for
// the hole behind it.
func TestMapsFile(t *testing.T) {
	command := startCat(t)
	openOwnMaps(t)
	f, err := OpenMaps(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	maps, err := Maps(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maps {
		m := &maps[i]
		if m.Path == "[vsyscall]" {
			continue // is no mapping of the process
		}
		for _, address := range []uint64{m.Start, (m.Start + m.End) / 2, m.End - 1} {
			if got, err := f.At(address); err != nil || !got.SameMemory(m) {
				t.Errorf("0x%x: %+v, %v; maps has %+v", address, got, err, *m)
			}
		}
		if i+1 == len(maps) || maps[i+1].Start > m.End {
			if got, err := f.At(m.End); !errors.Is(err, ErrUnmapped) {
				t.Errorf("behind %+v: %+v, %v", *m, got, err)
			}
		}
	}
	_ = command.Process.Kill()
	_ = command.Wait()
	if _, err := f.At(maps[0].Start); !errors.Is(err, ErrGone) {
		t.Errorf("of an ended process: %v", err)
	}
}

// TestMapsFileNoticesChanges: another file, or another part of the same one, at the address of the old mapping.
func TestMapsFileNoticesChanges(t *testing.T) {
	f := openOwnMaps(t)
	page := os.Getpagesize()
	file := make([]*os.File, 2)
	for i := range file {
		var err error
		if file[i], err = os.CreateTemp(t.TempDir(), "mapped"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file[i].Close() }()
		if err := file[i].Truncate(int64(3 * page)); err != nil {
			t.Fatal(err)
		}
	}
	at, err := unix.MmapPtr(int(file[0].Fd()), 0, nil, uintptr(page), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	address := uint64(uintptr(at))
	before, err := f.At(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		name   string
		file   int
		offset int
		rights int
	}{
		{"another file", 1, 0, unix.PROT_READ},
		{"another part", 0, page, unix.PROT_READ},
		{"other rights", 0, 0, unix.PROT_READ | unix.PROT_WRITE},
	} {
		if _, err := unix.MmapPtr(int(file[change.file].Fd()), int64(change.offset), at, uintptr(page), change.rights,
			unix.MAP_PRIVATE|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
		if after, err := f.At(address); err != nil || after.SameMemory(&before) {
			t.Errorf("%s: %+v, %v; was %+v", change.name, after, err, before)
		}
	}
	if err := unix.MunmapPtr(at, uintptr(page)); err != nil {
		t.Fatal(err)
	}
	if after, err := f.At(address); err == nil && after.SameMemory(&before) {
		t.Errorf("unmapped: %+v", after)
	}
}

func BenchmarkMapsFile(b *testing.B) {
	own := openOwnMaps(b)
	maps, err := Maps(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			f, err := OpenMaps(os.Getpid())
			if err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
	b.Run("ask with build-id", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := own.ImageAt(maps[0].Start); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("ask", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := own.At(maps[0].Start); err != nil {
				b.Fatal(err)
			}
		}
	})
}
