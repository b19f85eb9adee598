package capture_test

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// coresDir holds what scripts/cores.sh has made: for each architecture and each way of keeping a stack a program, its
// core and gdb's backtrace of it.
const coresDir = "../../unwind/corefile/testdata"

// coreStack is the stack of testdata/src/stack.c when it ends, whatever it was built for; "" is the trampoline.
var coreStack = []string{
	"leaf", "crash", "deeper", "deeper", "deeper", "deeper", "on_signal", "",
	"leaf", "middle", "outer", "start_c", "_start",
}

// unpack decompresses a file of coresDir into dir.
func unpack(t *testing.T, dir, name string) string {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join(coresDir, name+".xz"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := xz.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := io.Copy(f, r); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestCores reads every core of the five architectures. The stack must equal the program's source, and each frame that
// gdb-multiarch found must have the same address and name. At some trampolines and signed addresses gdb stops or loops.
// The test prints how many frames gdb confirms.
func TestCores(t *testing.T) {
	cores, err := filepath.Glob(filepath.Join(coresDir, "*.core.xz"))
	if err != nil || len(cores) < 30 {
		t.Fatalf("%d cores, %v", len(cores), err)
	}
	frames, confirmed := 0, 0
	seen := make(map[string]int)
	for _, path := range cores {
		name := strings.TrimSuffix(filepath.Base(path), ".core.xz")
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c, err := capture.ReadCore(unpack(t, dir, name+".core"), capture.CoreOptions{Exe: unpack(t, dir, name)})
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Refused) > 0 || c.Signal != 11 || !strings.HasPrefix(name, c.Arch+"-") {
				t.Errorf("refused %v, signal %d, %s", c.Refused, c.Signal, c.Arch)
			}
			th := &c.Trace.Threads[0]
			bare, followed := strings.Contains(name, "bare"), c.Arch == "x86_64" || c.Arch == "aarch64"
			checkCoreStack(t, th, bare, followed)
			n := compareWithGDB(t, name, th.Frames, bare && !followed)
			frames, confirmed = frames+len(th.Frames), confirmed+n
			seen[c.Arch]++
		})
	}
	figure.Printf(t, "%d frames of %v cores, %d of them found by gdb too", frames, seen, confirmed)
	if len(seen) != 5 || confirmed < frames/2 {
		t.Errorf("%d architectures, %d of %d frames confirmed", len(seen), confirmed, frames)
	}
}

// checkCoreStack compares the names with coreStack. Stacks of bare functions, without call frame information and
// frame pointers, end in start_c: it never returns, so its code has no return to follow. On aarch64 the frame pointer
// is zero there. On riscv64 and s390x, such a stack ends in the first such function behind the link register.
func checkCoreStack(t *testing.T, th *backtrace.Thread, bare, followed bool) {
	t.Helper()
	want, whole := coreStack, th.Whole
	if bare {
		want, whole = coreStack[:len(coreStack)-1], th.Whole || strings.Contains(th.Stop, "no way to a return")
	}
	names := make([]string, len(th.Frames))
	for i := range th.Frames {
		f := &th.Frames[i]
		names[i] = f.Function
		if f.Note == "signal handler called" {
			names[i] = ""
		}
	}
	if bare && !followed {
		want, whole = want[:min(len(names), len(want))], strings.Contains(th.Stop, "no call frame information")
	}
	if !slices.Equal(names, want) || !whole {
		t.Errorf("stack %q, %s", names, th.Stop)
	}
}

// TestGlobalPointer checks the register gp of riscv64, which the programs' _start sets to __global_pointer$. In each
// core, gp must be the address of that symbol.
func TestGlobalPointer(t *testing.T) {
	programs, err := filepath.Glob(filepath.Join(coresDir, "riscv64-*.core.xz"))
	if err != nil || len(programs) < 6 {
		t.Fatalf("%v: %v", programs, err)
	}
	for _, path := range programs {
		name := strings.TrimSuffix(filepath.Base(path), ".core.xz")
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			core, exe := unpack(t, dir, name+".core"), unpack(t, dir, name)
			want := symbolValue(t, exe, "__global_pointer$") - symbolValue(t, exe, "leaf")
			whole, err := capture.ReadCore(core, capture.CoreOptions{Exe: exe})
			if err != nil {
				t.Fatal(err)
			}
			innermost := whole.Trace.Threads[0].Frames[0] // leaf
			f, err := os.Open(core)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			c, err := corefile.Open(f, name)
			if err != nil {
				t.Fatal(err)
			}
			gp := slices.Index(c.Arch.RegisterNames, "gp")
			if gp != c.Arch.Index(3) {
				t.Fatalf("gp is DWARF's 3, not register %d", gp)
			}
			got, ok := c.Threads[0].Registers.Get(gp)
			if got -= innermost.Address - innermost.Offset; !ok || got != want {
				t.Errorf("gp is at leaf+%#x, %v, want %#x", got, ok, want)
			}
		})
	}
}

// symbolValue returns the value of a symbol in a file's symbol table.
func symbolValue(t *testing.T, file, name string) uint64 {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("%s: no symbol %s", file, name)
	}
	return symbols[i].Value
}

var gdbFrame = regexp.MustCompile(`^#(\d+)\s+0x([0-9a-f]+) in (\S+) \(`)

// compareWithGDB compares the frames that gdb named and returns their number. cut is set if gdb may have more of them.
func compareWithGDB(t *testing.T, name string, frames []backtrace.Frame, cut bool) int {
	t.Helper()
	f, err := os.Open(filepath.Join(coresDir, name+".gdb"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := gdbFrame.FindStringSubmatch(lines.Text())
		if m == nil || m[3] == "??" { // gdb invents further frames
			continue
		}
		var level int
		var pc uint64
		if _, err := fmt.Sscanf(m[1]+" "+m[2], "%d %x", &level, &pc); err != nil {
			t.Fatal(err)
		}
		if cut && level >= len(frames) {
			continue
		}
		if level >= len(frames) || frames[level].Address != pc || frames[level].Function != m[3] {
			t.Errorf("gdb has %s", lines.Text())
			continue
		}
		n++
	}
	return n
}

// TestCoreWrongExe offers programs that are not the core's. Each must be refused and reported, and none of its names
// may appear.
func TestCoreWrongExe(t *testing.T) {
	dir := t.TempDir()
	core := unpack(t, dir, "aarch64-cfi.core")
	for _, test := range []struct{ exe, why string }{
		{"s390x-cfi", "it is for EM_S390"},
		{"aarch64-pie", ""},
		{"aarch64-fp", ""},
	} {
		t.Run(test.exe, func(t *testing.T) {
			c, err := capture.ReadCore(core, capture.CoreOptions{Exe: unpack(t, t.TempDir(), test.exe)})
			if err != nil {
				t.Fatal(err)
			}
			if !c.WrongExe || len(c.Refused) != 1 || !strings.Contains(c.Refused[0].Error(), corefile.ErrMismatch.Error()) ||
				!strings.Contains(c.Refused[0].Error(), test.why) {
				t.Errorf("wrong %v, refused %v", c.WrongExe, c.Refused)
			}
			for _, f := range c.Trace.Threads[0].Frames {
				if f.Function != "" {
					t.Errorf("named %s", f.Function)
				}
			}
		})
	}
}

// TestCoreUnproved uses a program whose shape fits the core. The core does not have the program's only read-only
// segment, because qemu leaves it out. So the program cannot be verified, and the user must see a warning.
func TestCoreUnproved(t *testing.T) {
	dir := t.TempDir()
	for core, unproved := range map[string]int{"aarch64-cfi": 1, "x86_64-cfi": 0} {
		c, err := capture.ReadCore(unpack(t, dir, core+".core"), capture.CoreOptions{Exe: unpack(t, dir, core)})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Unproved) != unproved || len(c.Refused) != 0 {
			t.Errorf("%s: unproved %v, refused %v", core, c.Unproved, c.Refused)
		}
	}
}

// TestCoreCut cuts a core at many places. The rest must give frames or an error, and must be reported as truncated.
func TestCoreCut(t *testing.T) {
	dir := t.TempDir()
	exe := unpack(t, dir, "riscv64-cfi")
	whole, err := os.ReadFile(unpack(t, dir, "riscv64-cfi.core"))
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut")
	stacks, errs := 0, 0
	for n := 0; n < len(whole); n += 97 {
		if err := os.WriteFile(cut, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := capture.ReadCore(cut, capture.CoreOptions{Exe: exe})
		if err != nil {
			errs++
			continue
		}
		stacks++
		if len(c.Refused) == 0 || len(c.Trace.Threads[0].Frames) == 0 {
			t.Fatalf("%d of %d bytes: refused %v, %d frames", n, len(whole), c.Refused, len(c.Trace.Threads[0].Frames))
		}
	}
	figure.Printf(t, "%d stacks, %d errors", stacks, errs)
	if stacks < 50 || errs == 0 {
		t.Errorf("%d stacks, %d errors", stacks, errs)
	}
}
