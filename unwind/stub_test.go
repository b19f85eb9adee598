package unwind

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
	"pg_stat_backtrace/unwind/elfimage"
)

// TestStubs compares the stubs of the procedure linkage tables of real files with the names from disassemblers, or
// from the relocations of these tables in the same order. The files are the C library, Perl, the servers of
// PGSB_TEST_BINDIRS, and libraries of other architectures.
func TestStubs(t *testing.T) {
	t.Parallel()
	for _, tool := range disassemblers {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here (Debian: binutils, llvm)", tool)
		}
	}
	var files []string
	for _, pattern := range []string{
		"/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/perl", "/usr/aarch64-linux-gnu/lib/lib[cmr]*.so.*",
		"/usr/riscv64-linux-gnu/lib/lib[cmr]*.so.*", "/usr/s390x-linux-gnu/lib/lib[cmr]*.so.*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for dir := range strings.SplitSeq(os.Getenv("PGSB_TEST_BINDIRS"), ":") {
		if dir != "" {
			files = append(files, filepath.Join(dir, "postgres"))
		}
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			compareStubs(t, file)
		})
	}
}

func compareStubs(t *testing.T, file string) {
	t.Helper()
	img := imagetest.OpenedImage(t, file)
	a, err := arch.ByMachine(img.Machine(), img.Order())
	if err != nil {
		t.Fatal(err)
	}
	c := bareCode{module: Module{Code: img}, arch: a}
	stubs, endlessOnes := 0, 0
	var names map[uint64]string
	if tool, ok := disassemblers[img.Machine()]; ok {
		names = labels(t, tool, file)
	} else {
		names = relocations(t, img, file)
	}
	for addr, name := range names {
		got := c.imported(addr)
		want, _, _ := strings.Cut(name, "@")
		if strings.HasPrefix(want, "*ABS*") {
			want = "" // the image's own function, which it chooses when it is loaded
		}
		if got != want {
			t.Errorf("%#x: %q, not %q", addr, got, want)
		}
		stubs++
		if endless[got] {
			endlessOnes++
		}
	}
	figure.Printf(t, "%d stubs, %d of functions that never return", stubs, endlessOnes)
	if stubs == 0 {
		t.Error("there are no stubs to compare")
	}
	section, addr, err := img.Section(".text")
	if err != nil {
		t.Fatal(err)
	}
	others := 0
	for at := 0; at < min(len(section), 1<<16); at += 4 {
		if name := c.imported(addr + uint64(at)); name != "" {
			others++ // a jump through the global offset table in a function is one as well
		}
	}
	if others > 16 {
		t.Errorf("%d instructions of functions are taken for stubs", others)
	}
}

// disassemblers are the disassemblers that show the names. LLVM's shows no names in the tables that newer linkers
// create for x86-64. GNU's is built for one architecture.
var disassemblers = map[elf.Machine]string{elf.EM_X86_64: "objdump", elf.EM_AARCH64: "llvm-objdump"}

// tables are the sizes of the head and of the stubs of a procedure linkage table, for machines whose disassemblers do
// not show the names (RISC-V psABI and zSeries ELF ABI, "Procedure Linkage Table").
var tables = map[elf.Machine]struct{ head, stub uint64 }{elf.EM_RISCV: {32, 16}, elf.EM_S390: {32, 32}}

// relocations returns the names of the functions that the stubs of an image lead to.
func relocations(t *testing.T, img *elfimage.Image, file string) map[uint64]string {
	t.Helper()
	_, addr, err := img.Section(".plt")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "readelf", "-rW", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(out), "'.rela.plt'")
	layout := tables[img.Machine()]
	found := map[uint64]string{}
	addr += layout.head
	for l := range strings.Lines(list) {
		fields := strings.Fields(l) // offset, info, type, value, name, "+", addend
		if len(fields) > 2 && strings.HasPrefix(fields[2], "R_") {
			found[addr] = ""
			if len(fields) == 7 {
				found[addr] = fields[4]
			}
			addr += layout.stub
		}
	}
	return found
}

var label = regexp.MustCompile(`^([0-9a-f]+) <(.+)@plt>:$`)

// labels returns the disassembler's names of stubs by address.
func labels(t *testing.T, tool, file string) map[uint64]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool, "-d", "--no-show-raw-insn", "-j", ".plt", "-j", ".plt.sec",
		"-j", ".plt.got", file)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[uint64]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		if m := label.FindStringSubmatch(lines.Text()); m != nil {
			addr, err := strconv.ParseUint(m[1], 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			found[addr] = m[2]
		}
	}
	return found
}

// TestNoStubs checks that similar code is not a stub: it loads the address from elsewhere, or does not jump to it.
func TestNoStubs(t *testing.T) {
	t.Parallel()
	const at, here, load, jump = 0x1000, 0x00000e17, 0x010e3e03, 0x000e0367 // auipc t3; ld t3, 16(t3); jalr t1, t3
	for _, tt := range []struct {
		name  string
		words [3]uint32
		slot  uint64
	}{
		{"a stub", [3]uint32{here, load, jump}, at + 16},
		{"another base", [3]uint32{here, 0x01033e03, jump}, 0},
		{"another target", [3]uint32{here, load, 0x00038367}, 0},
		{"a jump elsewhere", [3]uint32{here, load, 0x0080036f}, 0},
		{"no jump", [3]uint32{here, load, load}, 0},
	} {
		c := bareCode{window: make([]byte, 32), start: at}
		for i, w := range tt.words {
			binary.LittleEndian.PutUint32(c.window[4*i:], w)
		}
		if slot, ok := relativeStub(disasm.DecodeRV64)(&c, at); ok != (tt.slot != 0) || ok && slot != tt.slot {
			t.Errorf("%s: %#x, %t", tt.name, slot, ok)
		}
	}
}
