package cfi

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// TestPLT checks the expression that all PLT entries share. It computes from the program counter whether the entry's
// push has run: CFA = rsp + 8 + ((rip & 15) >= 11 ? 8 : 0).
func TestPLT(t *testing.T) {
	const libc = "/lib/x86_64-linux-gnu/libc.so.6"
	needFile(t, libc)
	table := load(t, libc)
	plt := headed(t, libc, ".plt")
	for offset, pushed := range map[uint64]uint64{16: 0, 26: 0, 27: 8, 31: 8, 32: 0} {
		row, err := table.Row(plt + offset)
		if err != nil {
			t.Fatal(err)
		}
		if row.CFA.Kind != RuleExpression {
			t.Skipf("the PLT of %s has no expression", libc)
		}
		regs := someRegisters()
		regs.Set(arch.AMD64.PC, plt+offset)
		cfa, caller, err := row.Apply(&regs, sparseMemory{testRSP: 0x1111, testRSP + 8: 0x2222})
		want := map[uint64]uint64{0: 0x1111, 8: 0x2222}[pushed]
		if pc, _ := caller.Get(arch.AMD64.PC); err != nil || cfa != testRSP+8+pushed || pc != want {
			t.Errorf("PLT+%d: CFA rsp%+d, PC %#x, %v", offset, cfa-testRSP, pc, err)
		}
	}
}

// headed returns the address of a section.
func headed(t *testing.T, path, section string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // read only
	s := f.Section(section)
	if s == nil {
		t.Skipf("%s has no %s", path, section)
	}
	return s.Addr
}

// TestSignalFrame checks the code to which signal handlers return. It has an expression for each register: the place
// in the ucontext where the kernel put it, relative to rsp (rsp points at uc_flags of struct ucontext, 40 bytes
// before r8).
func TestSignalFrame(t *testing.T) {
	const libc = "/lib/x86_64-linux-gnu/libc.so.6"
	needFile(t, libc)
	table := load(t, libc)
	// The order of struct sigcontext, by DWARF column.
	saved := []int{8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16}
	mem := sparseMemory{}
	for i, column := range saved {
		mem[testRSP+40+8*uint64(i)] = 0x1000 + uint64(column)
	}
	found := false
	for f := range table.FDEs {
		if !f.Signal {
			continue
		}
		found = true
		row, err := table.Row(f.Start + 1)
		if err != nil || !row.Signal {
			t.Fatalf("signal %v, %v", row.Signal, err)
		}
		var regs arch.Registers
		regs.Set(arch.AMD64.SP, testRSP)
		cfa, caller, err := row.Apply(&regs, mem)
		if err != nil || cfa != 0x1007 {
			t.Errorf("CFA %#x, %v", cfa, err)
		}
		for _, column := range saved {
			if v, ok := caller.Get(column); !ok || v != 0x1000+uint64(column) {
				t.Errorf("column %d: %#x, %v", column, v, ok)
			}
		}
	}
	if !found {
		t.Error("no signal frame in the C library")
	}
}

// _start has an undefined return address: the end of every stack.
func TestOutermost(t *testing.T) {
	const server = "/usr/lib/postgresql/15/bin/postgres"
	needFile(t, server)
	f, err := elf.Open(server)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // read only
	row, err := load(t, server).Row(f.Entry)
	if err != nil || !row.RAUndefined {
		t.Fatalf("RAUndefined %v, %v", row.RAUndefined, err)
	}
	regs := someRegisters()
	if _, _, err := row.Apply(&regs, sparseMemory{}); !errors.Is(err, ErrUndefinedRA) {
		t.Error(err)
	}
}

// vdsoFile writes this process's vDSO to a file. It returns "" if there is none.
func vdsoFile(t *testing.T) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Log("no vDSO: ", err)
		return ""
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, "[vdso]") {
			continue
		}
		limits, _, _ := strings.Cut(line, " ")
		low, high, _ := strings.Cut(limits, "-")
		start, err1 := strconv.ParseUint(low, 16, 63)
		end, err2 := strconv.ParseUint(high, 16, 63)
		data := make([]byte, end-start)
		mem, err3 := os.Open("/proc/self/mem")
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = mem.Close() }() // read only
		if _, err := mem.ReadAt(data, int64(start)); err != nil {
			t.Log("no vDSO: ", err)
			return ""
		}
		path := filepath.Join(t.TempDir(), "vdso.so")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Log("no vDSO in this process's maps")
	return ""
}

// TestWholeFiles computes every row of a file in three ways: by the header, by an index, and for the last address of
// the previous row. All results must be equal.
func TestWholeFiles(t *testing.T) {
	if arch.Host() != arch.AMD64 {
		t.Skip("knows where x86-64 files are")
	}
	path := firstFile("/usr/lib/postgresql/15/bin/postgres", "/lib/x86_64-linux-gnu/libc.so.6")
	if path == "" {
		t.Skip("neither a PostgreSQL server nor a C library where they are looked for")
	}
	table := load(t, path)
	if !table.Searchable() {
		t.Errorf("%s: no search table", path)
	}
	indexed := mustNew(t, Sections{EHFrame: table.sections[ehFrame], Arch: arch.AMD64})
	rows := 0
	for f := range table.FDEs {
		for pc := f.Start; pc < f.End; rows++ {
			row, err := table.Row(pc)
			if err != nil || row.Start != pc || row.End <= pc || row.End > f.End {
				t.Fatalf("%#x: row %#x..%#x, %v", pc, row.Start, row.End, err)
			}
			other, err := indexed.Row(row.End - 1)
			if err != nil || rowText(&row) != rowText(&other) || other.Start != pc || other.End != row.End {
				t.Fatalf("%#x: %s, %s, %v", pc, rowText(&row), rowText(&other), err)
			}
			if !bytes.Equal(row.Expression(row.CFA), other.Expression(other.CFA)) {
				t.Fatalf("%#x: expressions differ", pc)
			}
			pc = row.End
		}
	}
	if !table.Searchable() {
		t.Errorf("%s: the search table was found wanting", path)
	}
	t.Logf("%s: %d rows", path, rows)
}
