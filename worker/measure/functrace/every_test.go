package functrace

import (
	"debug/elf"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/internal/pgtest"
)

// TestEveryGoFunction compares the choice for all functions of a Go program with the calls of the run time's function
// that makes the stack larger. The instructions on the way to that call run again in the larger stack, so none of them
// may be chosen. For an architecture other than the machine's, only the run time is built, unless Full: a build of Go's
// whole library costs half a minute of processor time.
func TestEveryGoFunction(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds programs; left out by -short")
	}
	for _, m := range []struct {
		goarch string
		read   func(code []byte, at int) instructionOf
	}{
		{"amd64", readX86},
		{"arm64", readA64},
	} {
		t.Run(m.goarch, func(t *testing.T) {
			t.Parallel()
			f, err := elf.Open(buildFor(t, m.goarch))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			checked, growing, restarting := 0, 0, 0
			for _, fn := range functionsOf(t, f) {
				always, again := passed(fn, m.read)
				p, err := ChoosePoint(f.Machine, fn.code, PointOptions{Go: true})
				switch {
				case err != nil && len(again) == 0:
					continue // written in assembler: data, or loops
				case err != nil:
					t.Errorf("%s: %v", fn.name, err)
				case again[int(p.Offset)]:
					t.Errorf("%s: the instruction at %d runs twice when the stack grows", fn.name, p.Offset)
				case !always[int(p.Offset)]:
					t.Errorf("%s: not every call passes the instruction at %d", fn.name, p.Offset)
				}
				checked++
				if f.Machine == elf.EM_AARCH64 && restarts(fn.code[p.Offset:]) {
					restarting++
				}
				if len(again) > 0 {
					growing++
				}
			}
			t.Logf("%d functions, of which %d may need more stack; %d may be counted again when they are preempted", checked,
				growing, restarting)
			if growing < 800 || restarting > checked/20 {
				t.Errorf("only %d functions were checked", growing)
			}
		})
	}
}

// TestEveryServerFunction checks the choice for all functions that a server's program exports: every call passes the
// instruction, and no jump leads back to it or to one before it, other than to the function's beginning.
func TestEveryServerFunction(t *testing.T) {
	t.Parallel()
	for _, dir := range pgtest.BinDirs(t) {
		f, err := elf.Open(filepath.Join(dir, "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		read := readX86
		if f.Machine == elf.EM_AARCH64 {
			read = readA64
		} else if f.Machine != elf.EM_X86_64 {
			t.Skipf("functions of %v cannot be traced", f.Machine)
		}
		functions, refused := exportedFunctions(t, f), 0
		for _, fn := range functions {
			p, err := ChoosePoint(f.Machine, fn.code, PointOptions{})
			if err != nil {
				refused++
				continue
			}
			if !readable(fn.code[:p.Offset], read) {
				refused++ // by the other decoder, which does not know all instructions
				continue
			}
			if always, _ := passed(fn, read); !always[int(p.Offset)] {
				t.Errorf("%s: not every call passes the instruction at %d", fn.name, p.Offset)
			}
			for at := 0; ; {
				x := read(fn.code, at)
				if !x.ok {
					break
				}
				if (x.jump || x.branch) && x.target > 0 && x.target <= int(p.Offset) {
					t.Errorf("%s: a jump at %d leads to %d, and the instruction at %d runs again", fn.name, at, x.target, p.Offset)
				}
				at += x.size
			}
		}
		t.Logf("%s: %d functions, %d refused", dir, len(functions), refused)
		if len(functions) < 5000 || refused > len(functions)/100 {
			t.Errorf("%s: %d functions, %d refused", dir, len(functions), refused)
		}
		_ = f.Close()
	}
}

// readable reports whether all of the code is instructions that the decoder knows.
func readable(code []byte, read func([]byte, int) instructionOf) bool {
	at := 0
	for at < len(code) {
		x := read(code, at)
		if !x.ok {
			return false
		}
		at += x.size
	}
	return true
}

// exportedFunctions returns the functions in a program's dynamic symbol table.
func exportedFunctions(t *testing.T, f *elf.File) (list []goFunction) {
	t.Helper()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	text := f.Section(".text")
	data, err := text.Data()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Size > 0 && s.Value >= text.Addr &&
			s.Value+s.Size <= text.Addr+uint64(len(data)) {
			list = append(list, goFunction{name: s.Name, at: s.Value, code: data[s.Value-text.Addr:][:s.Size]})
		}
	}
	return list
}

// buildFor builds a program for an architecture.
func buildFor(t *testing.T, goarch string) string {
	t.Helper()
	exe, source := filepath.Join(t.TempDir(), goarch), "./testdata/calls"
	if goarch != runtime.GOARCH && !pgtest.Full() {
		source = exe + ".go"
		if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println() }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-o", exe, source)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+goarch, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return exe
}

// goFunction is a function of a program. grow are the addresses of the functions that make the stack larger.
type goFunction struct {
	name string
	at   uint64
	code []byte
	grow map[uint64]bool
}

// functionsOf returns the functions in a program's symbol table.
func functionsOf(t *testing.T, f *elf.File) (list []goFunction) {
	t.Helper()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	text := f.Section(".text")
	data, err := text.Data()
	if err != nil {
		t.Fatal(err)
	}
	grow := make(map[uint64]bool)
	for _, s := range symbols {
		switch {
		case elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 || s.Value < text.Addr ||
			s.Value+s.Size > text.Addr+uint64(len(data)):
		case strings.HasPrefix(s.Name, "runtime.morestack"):
			grow[s.Value] = true
		default:
			code := data[s.Value-text.Addr:][:s.Size]
			list = append(list, goFunction{s.Name, s.Value, code, grow})
		}
	}
	return list
}

// instructionOf is an instruction as another decoder reads it. Target is where a direct jump or call goes.
type instructionOf struct {
	size               int
	call, jump, branch bool
	target             int
	ok                 bool
}

// passed returns two sets of offsets of instructions. Every call of fn runs the instructions in always. The
// instructions in again lead to a call of a function in fn.grow, and run again after that call.
func passed(fn goFunction, read func([]byte, int) instructionOf) (always, again map[int]bool) {
	// leads reports whether straight code from a place leads to such a call.
	leads := func(at int) bool {
		for range 32 {
			x := read(fn.code, at)
			switch {
			case !x.ok || x.jump || x.branch:
				return false
			case x.call:
				return fn.grow[fn.at+uint64(x.target)]
			}
			at += x.size
		}
		return false
	}
	always, again = make(map[int]bool), make(map[int]bool)
	for at := 0; ; {
		x := read(fn.code, at)
		always[at] = true
		switch {
		case x.branch && leads(x.target):
			maps.Copy(again, always)
		case !x.ok || x.jump || x.call || x.branch:
			return always, again
		}
		at += x.size
	}
}

func readX86(code []byte, at int) (x instructionOf) {
	if at < 0 || at >= len(code) {
		return x
	}
	const endbr64 = "\xf3\x0f\x1e\xfa" // the decoder does not know it
	if strings.HasPrefix(string(code[at:min(at+4, len(code))]), endbr64) {
		return instructionOf{size: len(endbr64), ok: true}
	}
	inst, err := x86asm.Decode(code[at:], 64)
	if err != nil {
		return x
	}
	x = instructionOf{size: inst.Len, ok: true}
	rel, direct := inst.Args[0].(x86asm.Rel)
	x.target = at + inst.Len + int(rel)
	switch {
	case inst.Op == x86asm.CALL:
		x.call = true
	case inst.Op == x86asm.JMP || inst.Op == x86asm.RET:
		x.jump = true
	case direct:
		x.branch = true
	}
	return x
}

func readA64(code []byte, at int) (x instructionOf) {
	if at < 0 || at+4 > len(code) {
		return x
	}
	inst, err := arm64asm.Decode(code[at:])
	if err != nil {
		return x
	}
	x = instructionOf{size: 4, ok: true}
	for _, arg := range inst.Args {
		if rel, direct := arg.(arm64asm.PCRel); direct {
			x.target = at + int(rel)
			x.branch = inst.Op != arm64asm.ADR && inst.Op != arm64asm.ADRP && inst.Op != arm64asm.LDR
		}
	}
	_, conditional := inst.Args[0].(arm64asm.Cond)
	switch inst.Op { //nolint:exhaustive // all others
	case arm64asm.BL, arm64asm.BLR:
		x.call, x.branch = true, false
	case arm64asm.B:
		x.jump, x.branch = !conditional, conditional
	case arm64asm.BR, arm64asm.RET:
		x.jump = true
	}
	return x
}
