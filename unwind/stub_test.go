package unwind

import (
	"bufio"
	"bytes"
	"debug/elf"
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
)

// TestStubs compares the stubs of the procedure linkage tables of real files with the names from disassemblers.
// The files are the C library, Perl, the servers of PGSB_TEST_BINDIRS, and libraries of aarch64.
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
	for addr, name := range labels(t, disassemblers[img.Machine()], file) {
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
