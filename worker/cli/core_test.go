package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// TestCaptureCore compares what gcore has of a sleeping process with what a capture of the process itself has: the same
// frames, and in the core's title its name.
func TestCaptureCore(t *testing.T) {
	gcore, err := exec.LookPath("gcore")
	if err != nil {
		t.Skip("no gcore (package gdb)")
	}
	pid := sleeper(t)
	prefix := filepath.Join(t.TempDir(), "core")
	if out, err := exec.CommandContext(t.Context(), gcore, "-o", prefix, pid).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	core := prefix + "." + pid
	asleep(t, pid)

	_, live, _ := run(t, "capture", pid)
	status, out, stderr := run(t, "capture", "--core", core)
	_, wantFrames, _ := strings.Cut(live, "\n")
	title, frames, _ := strings.Cut(out, "\n")
	if status != 0 || stderr != "" || frames != wantFrames {
		t.Errorf("status %d, %q\nlive\n%s\ncore\n%s", status, stderr, wantFrames, frames)
	}
	if ok, _ := regexp.MatchString(`^core of process `+pid+` \(sleep\), \w+`, title); !ok {
		t.Errorf("title %q", title)
	}

	status, out, _ = run(t, "capture", "--core", core, "--format", "json")
	var doc struct {
		Engine  string `json:"engine"`
		Threads []struct {
			Frames []struct {
				Address string `json:"address"`
			} `json:"frames"`
		} `json:"threads"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || status != 0 || doc.Engine != "core" ||
		len(doc.Threads) != 1 || len(doc.Threads[0].Frames) != strings.Count(frames, "\n") {
		t.Errorf("status %d, %v, %s", status, err, out)
	}

	status, out, stderr = run(t, "symbols", core)
	if status != 1 || out != "" || !strings.Contains(stderr, "capture --core "+core) {
		t.Errorf("symbols of a core: status %d, %q, %q", status, stderr, out)
	}

	asleep(t, pid)
	_, folded, _ := run(t, "capture", "--format", "folded", pid)
	status, out, stderr = run(t, "capture", "--core", core, "--format", "folded")
	if status != 0 || out != folded || !strings.HasPrefix(out, "sleep;") {
		t.Errorf("folded: status %d, %q\nlive %q\ncore %q", status, stderr, folded, out)
	}

	status, out, stderr = run(t, "capture", "--core", core, "--goroutines")
	if status != 1 || out != "" || !strings.Contains(stderr, "no Go program or library") {
		t.Errorf("goroutines of a program in C: status %d, %q, %q", status, out, stderr)
	}

	status, out, stderr = run(t, "capture", "--core", core, "--exe", "/bin/ls")
	if status != 1 || !strings.Contains(stderr, "not the file of this core") || strings.Contains(out, "ls+0x") {
		t.Errorf("wrong program: status %d, %q\n%s", status, stderr, out)
	}
	if !strings.Contains(out, "libc.so") {
		t.Errorf("the libraries are lost with the program:\n%s", out)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if status, _, stderr = run(t, "capture", "--core", core, "--exe", missing); status != 1 || !strings.Contains(stderr, missing) {
		t.Errorf("a missing program: status %d, %q", status, stderr)
	}
	testEmptyLibrary(t, core)
}

// testEmptyLibrary: a library whose file is empty now is reported, and the exit status stays.
func testEmptyLibrary(t *testing.T, core string) {
	t.Helper()
	root := t.TempDir()
	libraries, err := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	if err != nil || len(libraries) == 0 {
		t.Skip("no C library in Debian's folder")
	}
	library, err := filepath.EvalSymlinks(libraries[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{library, libraries[0]} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	status, _, stderr := run(t, "capture", "--core", core, "--sysroot", root)
	if status != 0 || !strings.Contains(stderr, "libc.so.6") {
		t.Errorf("an empty library: status %d, %q", status, stderr)
	}
}

// TestCoreFlags refuses flags that would do nothing.
func TestCoreFlags(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"--nonstop"}, {"--stop"}, {"--debuginfod", "off"}, {"--stats"}} {
		status, _, stderr := run(t, append([]string{"capture", "--core", "core"}, flags...)...)
		if status != 2 || !strings.Contains(stderr, flags[0]+" is for processes") {
			t.Errorf("%v: status %d, %q", flags, status, stderr)
		}
	}
}

// TestCoreDebugDir names the functions of a stripped program by a debug file in a folder.
func TestCoreDebugDir(t *testing.T) {
	dir := t.TempDir()
	exe, source := filepath.Join(dir, "stripped"), filepath.Join(dir, "main.c")
	text := "#include <unistd.h>\nstatic __attribute__((noinline)) void nowhere_else(void) { pause(); }\n" +
		"int main(void) { nowhere_else(); return 1; }\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) string {
		t.Helper()
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Skip(err)
		}
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v, %s", args, err, out)
		}
		return string(out)
	}
	command("gcc", "-g", "-O1", "-Wl,--build-id=sha1", "-o", exe, source)
	id := regexp.MustCompile(`Build ID: ([0-9a-f]{2})([0-9a-f]+)`).FindStringSubmatch(command("readelf", "-n", exe))
	if id == nil {
		t.Fatal("no build-id")
	}
	folder := filepath.Join(dir, "debug", ".build-id", id[1])
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	command("objcopy", "--only-keep-debug", exe, filepath.Join(folder, id[2]+".debug"))
	command("strip", exe)
	program := exec.CommandContext(t.Context(), exe)
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	})
	pid := strconv.Itoa(program.Process.Pid)
	pgtest.Wait(t, "the program to sleep", func() bool {
		stat, err := process.ReadStat(program.Process.Pid)
		return err == nil && stat.State == 'S'
	})
	command("gcore", "-o", filepath.Join(dir, "core"), pid)
	core := filepath.Join(dir, "core."+pid)
	_, out, _ := run(t, "capture", "--core", core)
	_, with, _ := run(t, "capture", "--core", core, "--debug-dir", filepath.Join(dir, "debug"))
	if strings.Contains(out, "nowhere_else") || !strings.Contains(with, " nowhere_else+") {
		t.Errorf("without the debug file:\n%s\nwith it:\n%s", out, with)
	}
}

// TestCoreInterrupted interrupts the reading of a pipe from which nothing comes.
func TestCoreInterrupted(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }() // ends the reading as well
	stdin := os.Stdin
	os.Stdin = r
	ctx, cancel := context.WithCancel(t.Context())
	reading := make(chan error, 1)
	f := captureFlags{core: coreFlags{file: "-"}}
	go func() {
		reading <- f.runCore(ctx, io.Discard, io.Discard)
	}()
	if _, err := w.WriteString("\x7f"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond) // os.Stdin is read by then, or the context is canceled before: both are well
	cancel()
	select {
	case err := <-reading:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(time.Minute):
		t.Error("an interrupt does not end the reading")
	}
	os.Stdin = stdin
}

// coreOf compiles a program and makes a core file of it while it sleeps. It returns the core and the folder.
func coreOf(t *testing.T, commands ...[]string) (core, dir string) {
	t.Helper()
	dir = t.TempDir()
	program := filepath.Join(dir, "program")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("library.c", "#include <unistd.h>\nint in_library(void) { pause(); return 1; }\n")
	write("program.c", "#include <pthread.h>\nextern int in_library(void);\n"+
		"static void *other(void *p) { in_library(); return p; }\n"+
		"int main(void) { pthread_t t; pthread_create(&t, 0, other, 0); return in_library() + NUMBER; }\n")
	for _, command := range commands {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
			t.Skip(err)
		} else if err != nil {
			t.Fatalf("%v: %v, %s", command, err, out)
		}
	}
	process := exec.CommandContext(t.Context(), program)
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = process.Process.Kill(), process.Wait() }()
	pid := process.Process.Pid
	pgtest.Wait(t, "both threads to sleep", func() bool {
		tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
		if err != nil || len(tasks) != 2 {
			return false
		}
		for _, task := range tasks { // a thread that reads a page of the program from the disk is in state D
			stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", task.Name(), "stat"))
			if err != nil || !bytes.Contains(stat, []byte(") S ")) {
				return false
			}
		}
		return true
	})
	cmd := exec.CommandContext(t.Context(), "gcore", "-o", filepath.Join(dir, "core"), strconv.Itoa(pid))
	if out, err := cmd.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Skip("no gcore (package gdb)")
	} else if err != nil {
		t.Fatalf("gcore: %v, %s", err, out)
	}
	return filepath.Join(dir, "core."+strconv.Itoa(pid)), dir
}

// TestCoreFiles: a library that is empty now is reported, --exe must be the core's program, and all threads of a folded
// core have the program as their root.
func TestCoreFiles(t *testing.T) {
	t.Parallel()
	link := []string{"-L.", "-l:library.so", "-Wl,-rpath,$ORIGIN", "-pthread"}
	compile := func(output, number string) []string {
		return append([]string{"gcc", "-Wl,--build-id=none", "-DNUMBER=" + number, "-o", output, "program.c"}, link...)
	}
	core, dir := coreOf(t, []string{"gcc", "-shared", "-fPIC", "-o", "library.so", "library.c"},
		compile("program", "1"), compile("other", "2"))
	program, library := filepath.Join(dir, "program"), filepath.Join(dir, "library.so")

	status, out, stderr := run(t, "capture", "--core", core, "--format", "folded")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if status != 0 || len(lines) != 2 || !strings.HasPrefix(lines[0], "program;") || !strings.HasPrefix(lines[1], "program;") {
		t.Errorf("folded: status %d, %q\n%s", status, stderr, out)
	}
	for exe, want := range map[string]struct {
		status int
		stderr string
	}{
		program:                         {0, "warning: " + program + " is used without verification"},
		filepath.Join(dir, "other"):     {0, "other is used without verification"}, // the core has no code of it
		"/bin/sh":                       {1, "not the file of this core"},
		filepath.Join(dir, "missing"):   {1, "no such file"},
		core:                            {1, "core"},
		library:                         {1, "not the file of this core"},
		filepath.Join(dir, "program.c"): {1, "not an ELF image"},
	} {
		status, out, stderr := run(t, "capture", "--core", core, "--exe", exe)
		if status != want.status || !strings.Contains(stderr, want.stderr) || !strings.Contains(out, "in_library") {
			t.Errorf("--exe %s: status %d, %q\n%s", exe, status, stderr, out)
		}
	}
	for text, want := range map[string]string{"": "the file is empty", "text\n": "not an ELF image"} {
		if err := os.WriteFile(library, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		status, _, stderr := run(t, "capture", "--core", core)
		if status != 0 || !strings.Contains(stderr, library) || !strings.Contains(stderr, want) {
			t.Errorf("a library of %d bytes: status %d, %q, want %q", len(text), status, stderr, want)
		}
	}
}
