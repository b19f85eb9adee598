package compressed

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestWindows: places become addresses below 2^31, and the lines of a table give the places back.
func TestWindows(t *testing.T) {
	var out, in Windows
	places := []Place{
		{"31c4", "postgres", 0x406651}, {"31c4", "postgres", 0x1406651}, {"aa", "libc.so.6", 0x406651},
		{"", "[anon]", 0x7fff12345678}, {"", "a file\nof two lines", 0},
	}
	var addrs []uint64
	for _, p := range places {
		addr, ok := out.Encode(p)
		if !ok || addr >= 1<<31 {
			t.Errorf("%v is at 0x%x, %v", p, addr, ok)
		}
		addrs = append(addrs, addr)
	}
	if addrs[0] != places[0].Address {
		t.Errorf("the first image's addresses are not its own: 0x%x", addrs[0])
	}
	lines := out.Header()
	if want := "~i#0x1000000-0x2000000 0x1000000 31c4 postgres"; len(lines) != 5 || lines[1] != want {
		t.Errorf("header %q, want %q as the second", lines, want)
	}
	if again := out.Header(); len(again) != 0 {
		t.Errorf("told twice: %q", again)
	}
	for _, line := range lines {
		if err := in.Add(line); err != nil {
			t.Error(err)
		}
	}
	for i, addr := range addrs {
		want := places[i]
		want.Name = strings.ReplaceAll(want.Name, "\n", "?")
		if got, ok := in.Decode(addr); !ok || got != want {
			t.Errorf("0x%x is %v, %v; want %v", addr, got, ok, want)
		}
	}
	if _, ok := in.Decode(5 << windowBits); ok {
		t.Error("an address that no window has is a place")
	}
}

// TestBadWindows: a line that describes no window is an error with its position.
func TestBadWindows(t *testing.T) {
	for line, offset := range map[string]int{
		"~i#":                                       0,
		"~i#0x0-0x1000000 0x0 31c4":                 0,
		"~i#0x1-0x1000001 0x0 31c4 postgres":        3,
		"~i#0x0-0x2000000 0x0 31c4 postgres":        3,
		"~i#0-1000000 0x0 31c4 postgres":            3,
		"~i#0x0-0x1000000 0x4 31c4 postgres":        17,
		"~i#0x0-0x1000000 0x0 31C4 postgres":        21,
		"~i#0xffffffffff000000-0x0 0x0 31 postgres": 3,
	} {
		var w Windows
		var syntax *SyntaxError
		if err := w.Add(line); !errors.As(err, &syntax) || syntax.Offset != offset {
			t.Errorf("%q: %v, want an error at %d", line, err, offset)
		}
	}
}

// FuzzWindows: no line makes the table larger than its limit, and a line that was read is written in the same form.
func FuzzWindows(f *testing.F) {
	f.Add("~i#0x1000000-0x2000000 0x1000000 31c4 postgres", uint64(0x1406651))
	f.Fuzz(func(t *testing.T, line string, addr uint64) {
		var in, out Windows
		if in.Add(line) != nil {
			return
		}
		if len(in.list) > maxWindows {
			t.Fatalf("%d windows", len(in.list))
		}
		p, ok := in.Decode(addr)
		if !ok {
			return
		}
		if at, ok := out.Encode(p); !ok || at&(1<<windowBits-1) != addr&(1<<windowBits-1) {
			t.Fatalf("0x%x became 0x%x", addr, at)
		}
	})
}

// TestLongNames: a name that no file can have is refused, and is not written.
func TestLongNames(t *testing.T) {
	for _, c := range []struct {
		name string
		want int // bytes that are written
	}{
		{strings.Repeat("N", 255), 255}, {strings.Repeat("N", 256), 255}, {strings.Repeat("\u4e2d", 100), 255},
		{strings.Repeat("\u4e2d", 86) + "N", 255}, {strings.Repeat("\x1b", 255), 252},
	} {
		var out, in Windows
		out.Encode(Place{Name: c.name})
		line := out.Header()[0]
		if err := in.Add(line); err != nil {
			t.Errorf("%.20q: %v", c.name, err)
		}
		p, ok := in.Decode(0)
		if !ok || len(p.Name) > 255 || !utf8.ValidString(p.Name) {
			t.Errorf("%.20q of %d bytes becomes %d bytes", c.name, len(c.name), len(p.Name))
		}
	}
	for line, want := range map[string]string{
		"~i#0x0-0x1000000 0x0 - " + strings.Repeat("N", 256):      "a name of more than 255 bytes (byte 278)",
		"~i#0x0-0x1000000 0x0 " + strings.Repeat("a", 129) + " N": "a build-id of more than 128 digits (byte 149)",
	} {
		var w Windows
		if err := w.Add(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", line, err, want)
		}
	}
}
