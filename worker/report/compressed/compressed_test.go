package compressed

import (
	"bufio"
	"encoding/base64"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// vectors returns the output of libwebsockets' encoder and decoder for 20 backtraces; see testdata/README.
func vectors(t testing.TB) (encoded, decoded []string) {
	t.Helper()
	f, err := os.Open("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		e, d, ok := strings.Cut(lines.Text(), "\t")
		if !ok {
			t.Fatalf("no tab in %q", lines.Text())
		}
		encoded, decoded = append(encoded, e), append(decoded, d)
	}
	if len(encoded) != 20 || lines.Err() != nil {
		t.Fatalf("%d vectors, %v", len(encoded), lines.Err())
	}
	return encoded, decoded
}

// TestVectors: both directions are equal to libwebsockets' own code, with and without the lead-in and the padding.
func TestVectors(t *testing.T) {
	encoded, decoded := vectors(t)
	for i, line := range encoded {
		b, err := Parse(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if got := b.String(); got != decoded[i] {
			t.Errorf("%s: decoded\n%q, want\n%q", line, got, decoded[i])
		}
		if got, err := b.Line(); err != nil || got != line {
			t.Errorf("%s: encoded\n%s (%v), want\n%s", decoded[i], got, err, line)
		}
		bare, err := Parse(strings.TrimRight(strings.TrimPrefix(line, Mark), "="))
		if err != nil || !reflect.DeepEqual(bare, b) {
			t.Errorf("%s as bare base64: %v, %v", line, bare, err)
		}
	}
}

// fields writes fields as an encoder does: pairs of a value and its width.
func fields(pairs ...uint64) []byte {
	var w writer
	for i := 0; i < len(pairs); i += 2 {
		w.field(pairs[i], int(pairs[i+1]))
	}
	return append(w.out, 0, byte(len(w.out)+trailer))
}

// TestReferenceToFirstLevel: newer encoders of libwebsockets refer to the first level, too.
func TestReferenceToFirstLevel(t *testing.T) {
	blob := fields(2, 5, 0, 1, 23, 6, 0x401000, 23, 1, 1, 0, 3, 0, 1, 5, 6, 0x10, 5, 7, 6, 64, 7)
	b, err := Decode(blob)
	if want := (Backtrace{Size: 64, Stack: []uint64{0x401000, 0x401010}}); err != nil || !reflect.DeepEqual(b, want) {
		t.Errorf("%v, %v; want %v", b, err, want)
	}
}

// TestHighAddresses: addresses above 2^31 from newer encoders are read. Older encoders lose bits of such addresses,
// which is an error.
func TestHighAddresses(t *testing.T) {
	want := Backtrace{Size: 1 << 40, Stack: []uint64{0x7fff12345678, 0x80000000, 0x7fff12345679, 1<<63 - 1, 0}}
	blob, err := want.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(blob); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	var w writer // a level of 47 bits as an older encoder writes it, with its padding bit set
	w.field(1, levelsWidth)
	w.field(0, kindWidth)
	w.field(47, countWidth)
	for i := 46; i >= 0; i-- {
		w.bit(uint64(0x7fff12345678)>>(i%32)&1 != 0)
	}
	w.bit(true)
	w.number(0)
	_, err = Decode(append(w.out, 0, byte(len(w.out)+trailer)))
	if err == nil || !strings.Contains(err.Error(), "lost the bits of level 0") {
		t.Errorf("a truncated address is %v", err)
	}
	for _, b := range []Backtrace{
		{Stack: []uint64{1 << 63}}, {Size: 1 << 63}, {Stack: make([]uint64, MaxLevels+1)},
	} {
		if _, err := b.Line(); !errors.Is(err, ErrUnencodable) {
			t.Errorf("%d levels, size %d: %v", len(b.Stack), b.Size, err)
		}
	}
}

// TestMalformed: malformed input gives an error with the position.
func TestMalformed(t *testing.T) {
	encoded, _ := vectors(t)
	whole := strings.TrimRight(strings.TrimPrefix(encoded[0], Mark), "=")
	for _, c := range []struct {
		text   string
		offset int
		bits   bool
		reason string
	}{
		{Mark, 0, true, "too short"},
		{"", 0, true, "too short"},
		{"AA==", 8, true, "too short"},
		{Mark + "IF0B*mUQ", 7, false, "not base64"},
		{"IF0BmUQ\nIF0BmUQ", 7, false, "a line end"},
		{Mark + strings.Repeat("A", 2000), 3 + maxText, false, "longer than 1024 bytes"},
		{Mark + whole[:24], 128, true, "state a length"},
		{text(fields()), 0, true, "it ends within the number of levels"},
		{text(fields(1, 5)), 8, true, "it ends within the number of bits of level 0"},
		{text(fields(1, 5, 0, 1, 63, 6)), 15, true, "it ends within level 0"},
		{text(fields(1, 5, 1, 1, 0, 3, 0, 1, 1, 6, 1, 1, 1, 6, 0, 1)), 6, true, "level 0 refers to a level before the first"},
		{text(fields(2, 5, 0, 1, 1, 6, 1, 1, 1, 1, 3, 3, 0, 1, 1, 6, 1, 1, 1, 6, 0, 1)), 17, true, "level 1 refers to"},
		{text(fields(2, 5, 0, 1, 1, 6, 1, 1, 1, 1, 0, 3, 1, 1, 2, 6, 2, 2, 1, 6, 0, 1)), 17, true, "beyond the range"},
		{text(fields(0, 5, 1, 6, 1, 1, 0, 20)), 15, true, "21 bits behind the size"},
	} {
		_, err := Parse(c.text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		at := syntax.Offset
		if c.reason == "21 bits behind the size" {
			at = c.offset // rounded up to whole bytes
		}
		if at != c.offset || syntax.Bits != c.bits || !strings.Contains(syntax.Reason, strings.TrimPrefix(c.reason, "21 ")) {
			t.Errorf("%q: %v, want %q at %d", c.text, err, c.reason, c.offset)
		}
	}
	padded := fields(0, 5, 1, 6, 1, 1)
	padded[0] |= 4 // the padding bit behind the number of levels
	if _, err := Decode(padded); err == nil || !strings.Contains(err.Error(), "padding bit behind the number of levels") {
		t.Errorf("a padding bit that is set: %v", err)
	}
	tail := fields(0, 5, 1, 6, 1, 1)
	tail[len(tail)-trailer-1] |= 1
	if _, err := Decode(tail); err == nil || !strings.Contains(err.Error(), "a bit behind the size is set") {
		t.Errorf("a bit behind the size: %v", err)
	}
}

func text(blob []byte) string { return base64.StdEncoding.EncodeToString(blob) }

// FuzzParse: a backtrace that was read can be written, and is then read as the same backtrace. For any other text, the
// error is a SyntaxError with a position in the text.
func FuzzParse(f *testing.F) {
	encoded, _ := vectors(f)
	for _, line := range encoded {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		b, err := Parse(line)
		var syntax *SyntaxError
		if err != nil {
			if !errors.As(err, &syntax) || syntax.Offset < 0 || syntax.Offset > 8*max(2*len(line), 8) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := b.Line()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(again); err != nil || got.Size != b.Size || !slices.Equal(got.Stack, b.Stack) {
			t.Fatalf("%v became %v, %v", b, got, err)
		}
	})
}

// FuzzRoundTrip: every backtrace for which the format has room is read as it was written.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint64(7520), []byte("\x51\x66\x40\x00\x00\x00\x00\x00\x52\x68\x40\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, size uint64, raw []byte) {
		b := Backtrace{Size: size >> 1}
		for len(raw) >= 8 && len(b.Stack) < MaxLevels {
			var v uint64
			for i := range 8 {
				v |= uint64(raw[i]) << (8 * i)
			}
			b.Stack, raw = append(b.Stack, v>>1), raw[8:]
		}
		line, err := b.Line()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(line); err != nil || got.Size != b.Size || !slices.Equal(got.Stack, b.Stack) {
			t.Fatalf("%v became %v, %v", b, got, err)
		}
	})
}

// TestDifferenceOrLiteral: a difference is written if it is 5 bits shorter than the address, as in libwebsockets.
func TestDifferenceOrLiteral(t *testing.T) {
	for distance, want := range map[uint64]uint64{1 << 17: 1, 1 << 18: 0} { // of 18 and 19 bits, the address has 23
		b := Backtrace{Stack: []uint64{1, 0x400000, 0x400000 + distance}}
		blob, err := b.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		r := reader{bits: blob, at: 6 + (2 + 7 + 2) + (2 + 7 + 24)}
		if got := r.field(kindWidth, ""); got != want || r.err != nil {
			t.Errorf("a difference of 0x%x has the kind %d, want %d", distance, got, want)
		}
	}
}
