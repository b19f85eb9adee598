package stackoracle

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
)

// target is a small program of testdata that blocks at its spot.
type target struct {
	name      string // of the subject
	compiler  string // default gcc
	flags     string
	sources   string
	arguments string
	chain     string // functions that must follow one another, innermost first
	child     bool   // the subject is the process whose id the target prints first
}

var plainChain = "spot inner middle outer main"

var targets = []target{
	{name: "omit-frame-pointer", flags: "-O2 -fomit-frame-pointer", sources: "plain.c", chain: plainChain},
	{name: "frame-pointer", flags: "-O2 -fno-omit-frame-pointer", sources: "plain.c", chain: plainChain},
	{name: "unoptimized", flags: "-O0", sources: "plain.c", chain: plainChain},
	{name: "debug information", flags: "-O2 -g", sources: "plain.c", chain: plainChain},
	{name: "lto", flags: "-O3 -flto", sources: "plain.c", chain: plainChain},
	{name: "no-pie", flags: "-O2 -no-pie", sources: "plain.c", chain: plainChain},
	{name: "static", flags: "-O2 -static -no-pie", sources: "plain.c", chain: plainChain},
	{name: "static-pie", flags: "-O2 -static-pie", sources: "plain.c", chain: plainChain},
	{name: "stripped", flags: "-O2 -s", sources: "plain.c"},
	{name: "debug_frame only", flags: "-O2 -g -fno-asynchronous-unwind-tables -fno-unwind-tables", sources: "plain.c",
		chain: plainChain},
	{name: "compressed debug_frame", sources: "plain.c", chain: plainChain,
		flags: "-O2 -g -gz=zlib -fno-asynchronous-unwind-tables -fno-unwind-tables"},
	{name: "no eh_frame_hdr", flags: "-O2 -Wl,--no-eh-frame-hdr", sources: "plain.c", chain: plainChain},
	{name: "no CFI, frame pointer", sources: "plain.c", chain: plainChain,
		flags: "-O2 -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-omit-frame-pointer"},
	{name: "alternate stack", flags: "-O2", sources: "altstack.c", chain: "spot third"},
	{name: "alternate stack, omit-frame-pointer", flags: "-O3 -fomit-frame-pointer", sources: "altstack.c",
		chain: "spot third"},
	{name: "assembly without CFI, framed", flags: "-O2 -DCALLEE=framed_nocfi", sources: "nocfi.c nocfi.S",
		chain: "spot callback framed_nocfi caller main"},
	{name: "assembly without CFI, frameless", flags: "-O2 -DCALLEE=frameless_nocfi", sources: "nocfi.c nocfi.S",
		chain: "spot callback frameless_nocfi caller main"},
	{name: "between two functions", flags: "-O2 -DCALLEE=falls", sources: "nocfi.c falls.S", chain: "caller main"},
	{name: "noreturn", flags: "-O2", sources: "noreturn.c", chain: "spot never ends_with_call main"},
	{name: "longjmp", flags: "-O2", sources: "longjmp.c", chain: "spot other jumped main"},
	{name: "vfork child", flags: "-O2", sources: "vfork.c", chain: "spot child parent main", child: true},
	{name: "realigned and alloca", flags: "-O2", sources: "realign.c", chain: "spot with_alloca realigned both main"},
	{name: "realigned and alloca, AVX", flags: "-O3 -mavx2 -fomit-frame-pointer", sources: "realign.c",
		chain: "spot with_alloca realigned both main"},
	{name: "jump through NULL", flags: "-O2", sources: "nulljump.c", chain: "caller main"},
	{name: "trap at a function's start", flags: "-O2", sources: "trap.c", chain: "trap caller main"},
	{name: "recursion", flags: "-O2 -fomit-frame-pointer", sources: "recursion.c", chain: "recurse main"},
	{name: "huge frame", flags: "-O2", sources: "hugeframe.c"},
	{name: "constructor", flags: "-O2", sources: "constructor.c", chain: "spot early construct"},
	{name: "atexit", flags: "-O2", sources: "atexit.c", chain: "spot late"},
	{name: "coroutine", flags: "-O2", sources: "coroutine.c", chain: "spot below body"},
	{name: "moved code", flags: "-O2", sources: "moved.c", chain: "spot inner outer main"},
	{name: "moved code, no-pie", flags: "-O2 -no-pie", sources: "moved.c", chain: "spot inner outer main"},
	{name: "generated code", flags: "-O2", sources: "jit.c"},
	{name: "threads", flags: "-O2 -pthread", sources: "threads.c", chain: "spot sleeping"},
	{name: "threads, static", flags: "-O2 -pthread -static", sources: "threads.c", chain: "spot sleeping"},
	{name: "C++ cleanup", compiler: "g++", flags: "-O2", sources: "throw.cc", arguments: "cleanup"},
	{name: "C++ terminate", compiler: "g++", flags: "-O2", sources: "throw.cc", arguments: "terminate"},
	{name: "C++ catch", compiler: "g++", flags: "-O2", sources: "throw.cc", arguments: "catch"},
	{name: "C++ static", compiler: "g++", flags: "-O2 -static", sources: "throw.cc", arguments: "cleanup"},
	{name: "musl", compiler: "musl-gcc", flags: "-O2", sources: "plain.c", chain: plainChain},
	{name: "musl, static", compiler: "musl-gcc", flags: "-O2 -static", sources: "plain.c", chain: plainChain},
	{name: "musl, threads", compiler: "musl-gcc", flags: "-O2 -pthread", sources: "threads.c", chain: "spot sleeping"},
}

func TestPrograms(t *testing.T) {
	tellTally(t)
	selected := figure.Share(t, 2)
	for i, target := range targets {
		if !selected(i) {
			continue
		}
		t.Run(target.name, func(t *testing.T) {
			compare(t, subject{name: target.name, pid: target.start(t), chain: strings.Fields(target.chain)})
		})
	}
}

// compile compiles the target's sources; a warning is an error.
func (g *target) compile(t *testing.T) string {
	t.Helper()
	compiler := g.compiler
	if compiler == "" {
		compiler = "gcc"
	}
	need(t, compiler)
	binary := filepath.Join(t.TempDir(), "target")
	arguments := append(strings.Fields(g.flags), "-Wall", "-Wextra", "-Werror", "-o", binary)
	for source := range strings.FieldsSeq(g.sources) {
		arguments = append(arguments, filepath.Join("testdata", source))
	}
	if out, messages, err := output(t, compiler, arguments...); err != nil {
		t.Fatalf("%s: %v\n%s%s", compiler, err, out, messages)
	}
	return binary
}

// start starts the target and returns the subject's process id when it sleeps at its spot.
func (g *target) start(t *testing.T) int {
	t.Helper()
	pid := launch(t, g.child, g.compile(t), strings.Fields(g.arguments)...)
	asleep(t, g.name, pid)
	return pid
}

// launch starts a program that prints a line "here". It returns the program's process id, or the id that the program
// printed before. The program's standard input stays open, and the program ends with the test.
func launch(t *testing.T, child bool, name string, arguments ...string) int {
	t.Helper()
	// the context of the test ends before the process is reaped below
	command := exec.CommandContext(context.WithoutCancel(t.Context()), name, arguments...)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = command.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = command.Wait() // killed
	})
	pid := command.Process.Pid
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "here" {
			return pid
		}
		if n, err := strconv.Atoi(lines.Text()); err == nil && child {
			pid = n
		}
	}
	t.Fatalf("%s ended before it reached its spot", name)
	return 0
}
