package capture_test

import (
	"cmp"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// elfTruth are the functions of a file that is not stripped, by address.
type elfTruth struct {
	symbols []symbol.Symbol
	// longest is the size of the longest one.
	longest uint64
}

// truthOf reads the symbols of the program and the libraries of a server.
func truthOf(t *testing.T, binDir string) map[string]elfTruth {
	t.Helper()
	all := map[string]elfTruth{"postgres": symbolsOf(t, filepath.Join(binDir, "postgres"))}
	err := filepath.WalkDir(filepath.Join(filepath.Dir(binDir), "lib"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.Contains(e.Name(), ".so") {
			if truth := symbolsOf(t, path); len(truth.symbols) > 0 {
				all[e.Name()] = truth
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func symbolsOf(t *testing.T, file string) elfTruth {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := elfimage.Open(f, file)
	if err != nil {
		return elfTruth{} // a linker script
	}
	all, err := m.Symbols(".symtab")
	if err != nil {
		return elfTruth{}
	}
	var out elfTruth
	for s := range all {
		if m.InCode(s) && s.Size > 0 {
			name, _, _ := strings.Cut(s.Name, "@")
			out.symbols = append(out.symbols, symbol.Symbol{Name: strings.Clone(name), Addr: s.Addr, Size: s.Size})
			out.longest = max(out.longest, s.Size)
		}
	}
	slices.SortFunc(out.symbols, func(a, b symbol.Symbol) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// at are the names of the functions that hold an address.
func (e elfTruth) at(addr uint64) []string {
	i, _ := slices.BinarySearchFunc(e.symbols, addr+1, func(s symbol.Symbol, a uint64) int {
		return cmp.Compare(s.Addr, a)
	})
	var names []string
	for i--; i >= 0 && addr-e.symbols[i].Addr < e.longest; i-- {
		if addr-e.symbols[i].Addr < e.symbols[i].Size {
			names = append(names, e.symbols[i].Name)
		}
	}
	return names
}

// between reports whether a note with the neighbours of an address is true. It returns true for other notes.
func (e elfTruth) between(note string, addr uint64) bool {
	names, ok := strings.CutPrefix(note, "static, between ")
	if !ok {
		return true
	}
	first, second, _ := strings.Cut(names, " and ")
	before := slices.IndexFunc(e.symbols, func(s symbol.Symbol) bool { return s.Name == first && s.Addr+s.Size <= addr })
	after := slices.IndexFunc(e.symbols, func(s symbol.Symbol) bool { return s.Name == second && s.Addr > addr })
	return before >= 0 && after >= 0 && !slices.Contains(e.at(addr), first) && !slices.Contains(e.at(addr), second)
}

// containsName compares with names as they are, and as they are demangled.
func containsName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return n == name || symbol.Demangle(n) == name })
}

// buildLibunwind compiles the program that has libunwind name a stack; "" if the library is not installed.
func buildLibunwind(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "libunwind")
	cmd := exec.CommandContext(t.Context(), "gcc", "-O2", "-o", exe, "../../tools/bench/libunwind.c",
		"-lunwind-ptrace", "-lunwind-generic", "-lunwind")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("libunwind-dev is not installed, its names are missing: %v\n%.200s", err, out)
		return ""
	}
	return exe
}

// libunwindNames are libunwind's names by address.
func libunwindNames(t *testing.T, exe string, pid int) map[uint64]string {
	t.Helper()
	if exe == "" {
		return nil
	}
	cmd := exec.CommandContext(t.Context(), exe, "1", "0", strconv.Itoa(pid))
	var out strings.Builder
	cmd.Env, cmd.Stderr = append(os.Environ(), "BENCH_PRINT_STACK=1"), &out
	if err := cmd.Run(); err != nil {
		t.Logf("libunwind, process %d: %v", pid, err)
	}
	names := make(map[uint64]string)
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) == 4 && f[2] == "in" {
			name, _, _ := strings.Cut(f[3], "+")
			addName(names, f[1], strings.TrimPrefix(name, "??"))
		}
	}
	return names
}

// euStackNames are eu-stack's names by address, none if it is not installed.
func euStackNames(t *testing.T, pid int) map[uint64]string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "eu-stack", "-n", "0", "-p", strconv.Itoa(pid)).Output()
	names := make(map[uint64]string)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2 || !strings.HasPrefix(f[0], "#"):
		case len(f) == 2 || f[2] == "-":
			addName(names, f[1], "")
		default:
			addName(names, f[1], f[2])
		}
	}
	return names
}

// addName adds a name without its version to those by address.
func addName(names map[uint64]string, addr, name string) {
	if a, err := strconv.ParseUint(addr, 0, 64); err == nil {
		names[a], _, _ = strings.Cut(name, "@")
	}
}
