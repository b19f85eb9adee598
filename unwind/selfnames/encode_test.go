package selfnames_test

import (
	"bytes"
	"debug/elf"
	"testing"

	"pg_stat_backtrace/unwind/selfnames"
)

// smallNames are the names of an image of some functions.
func smallNames(t testing.TB) *selfnames.Names {
	t.Helper()
	image, frames, symbols := smallImage(t, elf.EM_X86_64, reportingX86(), []byte(theNames), nil)
	names, err := selfnames.Derive(image, frames, symbols, nil)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// sameFacts compares the facts about each byte of the image's code.
func sameFacts(t *testing.T, got, want *selfnames.Names) {
	t.Helper()
	facts := 0
	for addr := uint64(textAddr); addr < textAddr+64*functionSize; addr++ {
		a, okA := got.At(addr)
		b, okB := want.At(addr)
		if a != b || okA != okB {
			t.Errorf("%#x: %+v, %t, want %+v, %t", addr, a, okA, b, okB)
		}
		if okB {
			facts++
		}
	}
	gotNamed, gotNoted := got.Derived()
	wantNamed, wantNoted := want.Derived()
	if gotNamed != wantNamed || gotNoted != wantNoted || got.Major() != want.Major() || got.Size() != want.Size() || facts == 0 {
		t.Errorf("%d facts; %d, %d, want %d, %d", facts, gotNamed, gotNoted, wantNamed, wantNoted)
	}
}

func TestEncodedNames(t *testing.T) {
	t.Parallel()
	want := smallNames(t)
	p, err := want.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := selfnames.Decode(p)
	if err != nil {
		t.Fatal(err)
	}
	sameFacts(t, got, want)
	for i := range p {
		if _, err := selfnames.Decode(p[:i]); err == nil {
			t.Errorf("%d of %d bytes are accepted", i, len(p))
		}
	}
	for i := range p { // a number that leads nowhere
		changed := bytes.Clone(p)
		changed[i] = 0x7f
		if names, err := selfnames.Decode(changed); err == nil {
			for addr := uint64(textAddr); addr < textAddr+1<<17; addr++ {
				names.At(addr)
			}
		}
	}
}

// FuzzDecode looks up every address in decoded names, which may be foreign.
func FuzzDecode(f *testing.F) {
	p, err := smallNames(f).AppendBinary(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Fuzz(func(_ *testing.T, p []byte) {
		names, err := selfnames.Decode(p)
		if err != nil {
			return
		}
		for addr := uint64(textAddr); addr < textAddr+1<<17; addr++ {
			names.At(addr)
		}
	})
}
