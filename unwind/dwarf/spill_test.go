package dwarf

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

// largeCompressed returns an installed debug file with a large compressed .debug_info.
func largeCompressed(t *testing.T) []byte {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/debug/.build-id/*/*.debug")
	for _, name := range found {
		info, err := os.Stat(name)
		if err != nil || info.Size() < minSpill {
			continue
		}
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if d := openBytes(t, file, Options{Spill: tempFile(t)}); d.sections.info.spill != nil {
			return file
		}
	}
	t.Skip("no large compressed debug file is installed (Debian: libc6-dbg)")
	return nil
}

func openBytes(t *testing.T, file []byte, o Options) *Data {
	t.Helper()
	m, err := elfimage.Open(bytes.NewReader(file), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func tempFile(t *testing.T) func() (SpillFile, error) {
	return func() (SpillFile, error) { return os.CreateTemp(t.TempDir(), "spill") }
}

// fewFrames looks up the beginnings of some units.
func fewFrames(d *Data, spans []indexed) [][]Frame {
	var all [][]Frame
	for i := 0; i < len(spans); i += 1 + len(spans)/50 {
		frames, _ := d.Frames(spans[i].low)
		all = append(all, frames)
	}
	return all
}

// TestSpillAsNeeded checks that a look-up in a unit near the start of the file expands only that part.
func TestSpillAsNeeded(t *testing.T) {
	d := openBytes(t, largeCompressed(t), Options{Spill: tempFile(t)})
	d.early.once.Do(func() { d.early.load(d) })
	first := d.early.index.spans[0]
	for _, s := range d.early.index.spans {
		if d.early.offsets[s.unit] < d.early.offsets[first.unit] {
			first = s
		}
	}
	if frames, err := d.Frames(first.low); len(frames) == 0 || err != nil {
		t.Fatalf("%+v, %v", frames, err)
	}
	if have := d.sections.info.spilled.have.Load(); have == 0 || have > d.sections.info.size/4 {
		t.Errorf("%d of %d bytes are expanded", have, d.sections.info.size)
	}
}

// fullFile is a file on a disk that has no more room.
type fullFile struct {
	SpillFile
	room int
}

var errFull = errors.New("disk full")

func (f *fullFile) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errFull
	}
	return f.SpillFile.Write(p)
}

// TestSpillDiskFull checks that the answers are the same if the disk is full or the file cannot be created.
func TestSpillDiskFull(t *testing.T) {
	file := largeCompressed(t)
	reference := openBytes(t, file, Options{Spill: tempFile(t)})
	if err := reference.Load(); err != nil {
		t.Fatal(err)
	}
	spans := reference.index.spans
	want := fewFrames(reference, spans)
	for name, create := range map[string]func() (SpillFile, error){
		"no file": func() (SpillFile, error) { return nil, errFull },
		"full": func() (SpillFile, error) {
			f, err := tempFile(t)()
			return &fullFile{f, minSpill}, err
		},
	} {
		if got := fewFrames(openBytes(t, file, Options{Spill: create}), spans); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d answers, not the same", name, len(got))
		}
	}
}

// TestSpillDamaged checks that a damaged section is not used after the damage was found, and that it is reported.
func TestSpillDamaged(t *testing.T) {
	file := largeCompressed(t)
	reference := openBytes(t, file, Options{Spill: tempFile(t)})
	if err := reference.Load(); err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var told []error
	damaged := bytes.Clone(file)
	damaged[f.Section(".debug_info").Offset+minSpill] ^= 0x10
	d := openBytes(t, damaged, Options{Spill: tempFile(t), Report: func(err error) { told = append(told, err) }})
	for range 2 {
		if err := d.Load(); !errors.Is(err, elfimage.ErrMalformed) {
			t.Fatal(err)
		}
	}
	for _, frames := range fewFrames(d, reference.index.spans) {
		if len(frames) > 0 {
			t.Fatalf("%+v", frames)
		}
	}
	if len(told) != 1 || !errors.Is(told[0], elfimage.ErrMalformed) {
		t.Errorf("told %v", told)
	}
}

// compressedImage returns a file with debugging information of which one section is compressed, and the position of the
// last byte of this section.
func compressedImage(t *testing.T, name string, content []byte, declared uint64) (file []byte, last int) {
	t.Helper()
	data := binary.LittleEndian.AppendUint64([]byte{byte(elf.COMPRESS_ZLIB), 0, 0, 0, 0, 0, 0, 0}, declared)
	out := bytes.NewBuffer(binary.LittleEndian.AppendUint64(data, 1))
	w := zlib.NewWriter(out)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64, Sections: []imagetest.Section{
		{Name: name, Type: elf.SHT_PROGBITS, Flags: elf.SHF_COMPRESSED, Data: out.Bytes()},
		{Name: ".debug_abbrev", Type: elf.SHT_PROGBITS, Data: []byte{0}},
	}}
	if name != ".debug_info" {
		f.Sections = append(f.Sections, imagetest.Section{Name: ".debug_info", Type: elf.SHT_PROGBITS, Data: []byte{0}})
	}
	file = f.Bytes()
	return file, bytes.Index(file, out.Bytes()) + out.Len() - 1
}

// TestSpillChecksum: the checksum is compared also if the last piece is full when the content ends.
func TestSpillChecksum(t *testing.T) {
	for _, size := range []int{minSpill, minSpill + 1} {
		content := make([]byte, size)
		binary.LittleEndian.PutUint32(content, uint32(size-4))
		content[4] = 99 // a unit of an unknown version
		file, last := compressedImage(t, ".debug_info", content, uint64(size))
		if err := openBytes(t, file, Options{Spill: tempFile(t)}).Load(); err != nil {
			t.Fatal(err)
		}
		file[last] ^= 1
		if err := openBytes(t, file, Options{Spill: tempFile(t)}).Load(); !errors.Is(err, elfimage.ErrMalformed) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestImpossibleSize: a section that cannot have its declared size does not raise the limit of the processor time.
func TestImpossibleSize(t *testing.T) {
	for declared, want := range map[uint64]int64{64: 64, 1 << 62: 0} {
		file, _ := compressedImage(t, ".debug_str", make([]byte, 64), declared)
		if got := openBytes(t, file, Options{}).effort.Input(); got != want+2 { // .debug_info and .debug_abbrev
			t.Errorf("%d declared bytes: an input of %d", declared, got)
		}
	}
}

// TestReadAhead checks that the other sections of a look-up are expanded in parallel with .debug_info.
func TestReadAhead(t *testing.T) {
	d := openBytes(t, largeCompressed(t), Options{Spill: tempFile(t)})
	d.early.once.Do(func() { d.early.load(d) })
	var inMemory atomic.Int32
	small := int32(0)
	for _, s := range []*section{&d.sections.abbrev, &d.sections.line, &d.sections.str} {
		if expand := s.expand; s.spill == nil {
			small++
			s.expand = func() ([]byte, error) {
				inMemory.Add(1)
				return expand()
			}
		}
	}
	begun := func() bool {
		for _, s := range []*section{&d.sections.abbrev, &d.sections.line, &d.sections.str} {
			if s.spill != nil && s.expanding().have.Load() == 0 {
				return false
			}
		}
		return inMemory.Load() == small
	}
	last := d.early.offsets[len(d.early.offsets)-1]
	d.readAhead(last)
	for deadline := time.Now().Add(3 * time.Minute); !begun(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d small sections, or a large one was not expanded", inMemory.Load(), small)
		}
	}
	if have := d.sections.info.spilled.have.Load(); have > 0 {
		t.Errorf("%d bytes of .debug_info were expanded as well", have)
	}
}
