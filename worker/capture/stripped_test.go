package capture_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/unwind/image"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/trace"
)

// strippedServer copies a server and strips the copy as Debian does; it returns the folder of its programs.
func strippedServer(t *testing.T, binDir string) string {
	t.Helper()
	tree := t.TempDir()
	command(t, "chmod", "-R", "a+rX", filepath.Dir(tree))
	command(t, "cp", "-rL", filepath.Dir(binDir)+"/.", tree)
	bin := filepath.Join(tree, filepath.Base(binDir))
	strip := []string{"--remove-section=.comment", "--remove-section=.note", filepath.Join(bin, "postgres")}
	command(t, "strip", append([]string{"--strip-unneeded"}, strip...)...)
	return bin
}

// fullSymbols are the functions of a file that is not stripped.
func fullSymbols(t *testing.T, file string) []symbol.Symbol {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := image.Open(f, file)
	if err != nil {
		t.Fatal(err)
	}
	all, err := m.Symbols(".symtab")
	if err != nil {
		t.Skipf("%s has no .symtab: set PGSB_TEST_BINDIRS to a server that is not stripped", file)
	}
	var out []symbol.Symbol
	for s := range all {
		if m.InCode(s) && s.Size > 0 {
			name, _, _ := strings.Cut(s.Name, "@")
			out = append(out, symbol.Symbol{Name: strings.Clone(name), Addr: s.Addr, Size: s.Size})
		}
	}
	return out
}

// covering are the names of the functions that hold an address.
func covering(all []symbol.Symbol, addr uint64) []string {
	var names []string
	for _, s := range all {
		if addr >= s.Addr && addr-s.Addr < s.Size {
			names = append(names, s.Name)
		}
	}
	return names
}

// outcome counts names of frames.
type outcome struct{ named, unnamed, wrong int }

func (o *outcome) add(name string, truth []string) {
	switch {
	case name == "":
		o.unnamed++
	case slices.Contains(truth, name):
		o.named++
	default:
		o.wrong++
	}
}

// TestStrippedServerHasNoWrongName captures all processes of a stripped server. The same file before it was stripped
// says what each frame is called. Beside it are the names by the nearest symbol, as libunwind gives them, and
// eu-stack's.
func TestStrippedServerHasNoWrongName(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers: not with -short")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		full := fullSymbols(t, filepath.Join(binDir, "postgres"))
		bin := strippedServer(t, binDir)
		exported := exportedSymbols(t, filepath.Join(bin, "postgres"))
		server := pgtest.Start(t, bin, pgtest.Options{})
		conn := server.Connect(t, server.User, "postgres")
		pids := append(childrenOf(t, server.PostmasterPID()), server.PostmasterPID(), int(conn.PgConn().PID()))
		c := patient(t, capture.Config{})
		var ours, nearest, elfutils outcome
		for _, pid := range pids {
			tr, err := c.Capture(t.Context(), ptrace.Target{PID: pid, UID: -1}, capture.Options{})
			if err != nil {
				t.Logf("process %d: %v", pid, err)
				continue
			}
			theirs := euStackNames(t, pid)
			for i := range tr.Threads[0].Frames {
				f := &tr.Threads[0].Frames[i]
				if f.Module != "postgres" {
					continue
				}
				truth := covering(full, lookupAddress(tr.Threads[0].Frames, i))
				before := ours.wrong
				ours.add(f.Function, truth)
				if ours.wrong > before {
					t.Errorf("%#x is called %s, but is in %v", f.ModuleOffset, f.Function, truth)
				}
				nearest.add(nearestName(exported, f.ModuleOffset-1), truth)
				if name, ok := theirs[f.Address]; ok {
					elfutils.add(name, truth)
				}
			}
		}
		figure.Printf(t, "frames in postgres: ours %+v; nearest exported symbol %+v; eu-stack %+v", ours, nearest, elfutils)
		if ours.named == 0 || ours.unnamed == 0 {
			t.Errorf("the stacks are not what this test needs: %+v", ours)
		}
	})
}

// lookupAddress is the address in the module that decides on a frame's name: return addresses lie behind the call.
func lookupAddress(frames []trace.Frame, i int) uint64 {
	if i == 0 || strings.Contains(frames[i].Note, "signal") || strings.Contains(frames[i-1].Note, "signal") {
		return frames[i].ModuleOffset
	}
	return frames[i].ModuleOffset - 1
}

func exportedSymbols(t *testing.T, file string) []symbol.Symbol {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	m, err := image.Open(f, file)
	if err != nil {
		t.Fatal(err)
	}
	table, err := symbol.NewTable(m)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(table.All())
}

// nearestName is the last function that begins at or before addr.
func nearestName(all []symbol.Symbol, addr uint64) string {
	name := ""
	for _, s := range all {
		if s.Addr > addr {
			break
		}
		name = s.Name
	}
	return name
}

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(pid) + "/children")
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for f := range strings.FieldsSeq(string(data)) {
		child, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, child)
	}
	return all
}

// euStackNames are eu-stack's names by address, none if it is not installed.
func euStackNames(t *testing.T, pid int) map[uint64]string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "eu-stack", "-n", "0", "-p", strconv.Itoa(pid)).Output()
	names := make(map[uint64]string)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasPrefix(f[0], "#") {
			continue
		}
		addr, err := strconv.ParseUint(f[1], 0, 64)
		if err != nil {
			continue
		}
		name := ""
		if len(f) > 2 && f[2] != "-" {
			name, _, _ = strings.Cut(f[2], "@")
		}
		names[addr] = name
	}
	return names
}
