package selfnames

import (
	"os"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/disasm"
	"pg_stat_backtrace/unwind/elfimage"
)

// TestLengthsAgreeWithDisassembler decodes all code of the servers and of some libraries, and compares lengths with
// package disasm/x86, which is itself compared with objdump. It also compares the two ways of decoding.
func TestLengthsAgreeWithDisassembler(t *testing.T) {
	t.Parallel()
	files := []string{"/proc/self/exe", "/lib/x86_64-linux-gnu/libc.so.6"}
	for dir := range strings.SplitSeq(os.Getenv("PGSB_TEST_BINDIRS"), ":") {
		files = append(files, dir+"/postgres")
	}
	compared, alike := 0, 0
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Logf("not compared: %v", err)
			continue
		}
		m, err := elfimage.Open(f, file)
		if err != nil {
			t.Fatal(err)
		}
		text, _, err := m.Section(".text")
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		var got instruction
		for o := 0; o < len(text); {
			want, err := disasm.DecodeX86(text[o:])
			if err != nil {
				o++ // data in the code
				continue
			}
			compared++
			if !decodeX86(text[o:], &got) || got.length != want.Len {
				t.Errorf("%s: % x: length %d, want %d (%v)", file, text[o:o+want.Len], got.length, want.Len, want)
			}
			for _, writes := range []bool{false, true} {
				var quick, slow effect
				got.effect(0, &slow, writes)
				if quickX86(text[o:], 0, &quick, writes) {
					alike++
					if quick != slow {
						t.Errorf("%s: % x: %+v, want %+v", file, text[o:o+want.Len], quick, slow)
					}
				}
			}
			o += want.Len
		}
	}
	t.Logf("%d instructions, %d by the quick way", compared, alike/2)
	if compared == 0 || alike == 0 {
		t.Error("nothing was compared")
	}
}
