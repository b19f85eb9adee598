package symbol_test

import (
	"testing"

	"pg_stat_backtrace/unwind/symbol"
)

func TestPerfMap(t *testing.T) {
	m := symbol.ParsePerfMap("1000 100 old\nnonsense\n2000 0 empty\nffffffffffffffff 10 wraps\n1000 80 new name\n" +
		"0x3000 0x10 prefixed\n4000 100 first\n4080 100 second\n" +
		"6000 1000 long\n6100 10 short\n6200 10 other\n5000 10 half writ")
	for addr, want := range map[uint64]string{
		0x1000: "new name", 0x107f: "new name", 0x1080: "", 0xfff: "", 0x2000: "", 0x3008: "prefixed",
		0x4010: "first", 0x4090: "", 0x4110: "second", 0x6050: "long", 0x6105: "", 0x6205: "", 0x6300: "", 0x5000: "", 0xffff_ffff_ffff_ffff: "",
	} {
		if name, start, ok := m.Find(addr); name != want || ok != (want != "") || ok && start > addr {
			t.Errorf("%#x: %q at %#x, %v; want %q", addr, name, start, ok, want)
		}
	}
}

func FuzzPerfMap(f *testing.F) {
	f.Add("1000 100 name\n1000 80 other\n", uint64(0x1000))
	f.Fuzz(func(t *testing.T, text string, addr uint64) {
		if name, start, ok := symbol.ParsePerfMap(text).Find(addr); ok && (name == "" || start > addr) {
			t.Errorf("%q at %#x holds %#x", name, start, addr)
		}
	})
}
