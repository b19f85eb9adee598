package cluster_test

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/cluster"
)

// build compiles testdata/server.c.
func build(t *testing.T, output string, arguments ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed")
	}
	command := exec.Command(gcc, append([]string{"-O1", "-w", "-rdynamic", "-o", output, "testdata/server.c"}, arguments...)...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return output
}

// run starts a program, and returns its process id and the address that it prints.
func run(t *testing.T, env []string, program string, arguments ...string) (pid int, address uint64) {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Env = append(os.Environ(), env...)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, "0x%x", &address)
	}
	if err != nil {
		t.Fatalf("%s %q: %v", program, arguments, err)
	}
	return command.Process.Pid, address
}

// interpreter returns the dynamic linker of a program.
func interpreter(t *testing.T, program string) string {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	data, err := f.Section(".interp").Data()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(data), "\x00")
}

// check compares the address of a variable that ProgramOf and Variables find with the address that the process has
// printed.
func check(t *testing.T, name string, pid int, address uint64, path string, moved bool) {
	t.Helper()
	p, err := cluster.ProgramOf(pid)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	found, err := p.Variables("my_wait_event_info")
	if err != nil || found["my_wait_event_info"] != address || p.Path != path {
		t.Errorf("%s: found %#x in %s, want %#x in %s (%v)", name, found, p.Path, address, path, err)
	}
	if part, all := p.MovedCode(); part > 0 != moved || part > all {
		t.Errorf("%s: %d of %d bytes of code have moved, want some: %v", name, part, all, moved)
	}
	file, err := p.Open()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer func() { _ = file.Close() }()
	want, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := file.Stat(); err != nil || !os.SameFile(got, want) {
		t.Errorf("%s: the program's file is %v (%v)", name, got, err)
	}
}

// TestMovedCode moves parts of a program to other memory. Its variables stay where they are.
func TestMovedCode(t *testing.T) {
	parts := []string{"nothing", "part", "text", "header", "all"}
	for _, test := range []struct {
		layout, where string
		flags         []string
	}{
		{"header and code apart", "anonymous", []string{"-Wl,-z,separate-code"}},
		{"header beside the code", "memfd", []string{"-Wl,-z,noseparate-code"}},
		{"at a fixed address", "tmpfs", []string{"-no-pie"}},
		// A header in another file is like another image there.
		{"without a build-id", "anonymous", []string{"-Wl,--build-id=none", "-Wl,-z,noseparate-code"}},
	} {
		exe := build(t, filepath.Join(t.TempDir(), "server"), test.flags...)
		for _, what := range parts {
			name := fmt.Sprintf("%s, %s to %s", test.layout, what, test.where)
			pid, address := run(t, nil, exe, what, test.where)
			check(t, name, pid, address, exe, what != "nothing")
			listed(t, name, pid, exe, what != "nothing")
		}
		pid, address := run(t, nil, exe, "copy", exe)
		check(t, test.layout+", mapped twice", pid, address, exe, false)
	}
}

// listed checks that the program is the first image of the process, with the file's symbols, and that it is known which
// code has moved.
func listed(t *testing.T, name string, pid int, exe string, moved bool) {
	t.Helper()
	all, err := symbolize.NewCache(arch.Host(), &symbolize.Sources{}).Loaded(pid)
	if err != nil || len(all) == 0 {
		t.Errorf("%s: images %v, %v", name, all, err)
		return
	}
	functions := all[0].Functions("move") // a static function
	if all[0].Path != exe || len(functions) != 1 {
		t.Errorf("%s: the first image is %s with %d functions", name, all[0].Path, len(functions))
		return
	}
	if !strings.Contains(name, "part") && all[0].Moved(functions[0].Addr) != moved {
		t.Errorf("%s: the function has moved: %v", name, !moved)
	}
}

// TestOtherStarts starts a program by a dynamic linker, and puts the variables into libraries.
func TestOtherStarts(t *testing.T) {
	dir := t.TempDir()
	exe := build(t, filepath.Join(dir, "server"))
	linker := interpreter(t, exe)
	resolved, err := filepath.EvalSymlinks(linker)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(resolved)
	if err != nil {
		t.Fatal(err)
	}
	renamed := filepath.Join(dir, "run")
	if err := os.WriteFile(renamed, text, 0o755); err != nil {
		t.Fatal(err)
	}
	decoy := build(t, filepath.Join(dir, "decoy.so"), "-DLIBRARY", "-shared", "-fPIC")
	library := build(t, filepath.Join(dir, "libserver.so"), "-DLIBRARY", "-shared", "-fPIC")
	small := build(t, filepath.Join(dir, "small"), "-DMAIN", "-fPIC", library, "-Wl,-rpath,"+dir)
	preload := []string{"LD_PRELOAD=" + decoy}

	for _, test := range []struct {
		name, program string
		env           []string
		arguments     []string
		want          string
		moved         bool
	}{
		{"as usual", exe, nil, nil, exe, false},
		{"by the linker", linker, nil, []string{exe}, exe, false},
		{"by a renamed linker", renamed, nil, []string{exe}, exe, false},
		{"by the linker, moved", linker, nil, []string{exe, "text", "anonymous"}, exe, true},
		{"by the linker, with its header moved", linker, nil, []string{exe, "header", "memfd"}, exe, true},
		{"beside such variables", exe, preload, nil, exe, false},
		{"by the linker, beside such variables", linker, preload, []string{exe}, exe, false},
		{"in a library", small, nil, nil, library, false},
		{"in a library, by the linker", linker, nil, []string{small}, library, false},
	} {
		pid, address := run(t, test.env, test.program, test.arguments...)
		check(t, test.name, pid, address, test.want, test.moved)
	}
	if p, err := cluster.ProgramOf(os.Getpid()); !errors.Is(err, cluster.ErrNoProgram) {
		t.Errorf("this test is a server: %+v, %v", p, err)
	}
}

// TestDeletedProgram removes the file of a running program, and puts another one in its place.
func TestDeletedProgram(t *testing.T) {
	dir := t.TempDir()
	exe := build(t, filepath.Join(dir, "server"))
	linker := interpreter(t, exe)
	for _, command := range [][]string{{exe}, {linker, exe}} {
		pid, address := run(t, nil, command[0], command[1:]...)
		if err := os.Rename(exe, exe+".old"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(exe + ".old"); err != nil {
			t.Fatal(err)
		}
		build(t, exe, "-O0")
		p, err := cluster.ProgramOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		found, err := p.Variables("my_wait_event_info")
		if err != nil || found["my_wait_event_info"] != address || !p.Deleted {
			t.Errorf("%q: found %#x, deleted %v, want %#x (%v)", command, found, p.Deleted, address, err)
		}
	}
}
