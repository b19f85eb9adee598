package levels

import "testing"

// TestRecognised checks that functions without names are recognised once by their code, for all processes. Code that
// could not be read is read again at the next call. A function that has a name is identified without a read of its
// code.
func TestRecognised(t *testing.T) {
	f := newFake(17)
	f.stripped = true
	arg := f.node(spiAt, 0)
	f.put64(arg, f.text("SELECT 1"))
	f.plpgsql("f()", 1, 3, 7)
	server := f.server()
	reads, image := 0, "a build-id"
	read := func(readable bool) int {
		in := f.input()
		in.Code = func(addr uint64) Code {
			code := f.code(addr)
			code.Image, code.Offset = image, addr&0xffff_ffff
			return code
		}
		in.Live = func(addr uint64, p []byte) int {
			if addr < heapAt || addr >= plpgsqlAt && addr < perlAt { // code and constants
				if reads++; !readable {
					return 0
				}
			}
			return f.read(addr, p)
		}
		return len(server.Process(bias).Read(in).Levels)
	}
	for _, test := range []struct {
		what     string
		readable bool
		image    string
		levels   int
		reads    bool
	}{
		{"unreadable code", false, "a build-id", 0, true},
		{"the same, readable", true, "a build-id", 2, true},
		{"known code", true, "a build-id", 2, false},
		{"known code, unreadable", false, "a build-id", 2, false},
		{"another file", false, "another", 0, true},
		{"a file without a build-id", true, "", 2, true},
		{"the same again", true, "", 2, true},
	} {
		reads, image = 0, test.image
		if levels := read(test.readable); levels != test.levels || reads > 0 != test.reads {
			t.Errorf("%s: %d levels, not %d, and %d reads of code", test.what, levels, test.levels, reads)
		}
	}
	f.stripped = false
	if reads, image = 0, "a build-id"; read(false) != 2 || reads > 0 {
		t.Errorf("with names: %d reads of code", reads)
	}
}

// TestVerdictsBounded recognises more functions than are kept.
func TestVerdictsBounded(t *testing.T) {
	f := newFake(17)
	r := reader{Process: f.server().Process(bias), in: f.input()}
	for i := range 3 * maxVerdicts {
		r.recognise(&Code{Image: "image", Offset: uint64(i)}, func() *callback { return &callbacks[0] })
	}
	if n := len(r.server.seen.byPlace); n == 0 || n > maxVerdicts {
		t.Errorf("%d functions are kept", n)
	}
}
