package doctor_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/doctor"
)

// cached is one fetched file.
type cached struct{ id, file string }

func (c cached) DebugFile(id string) string {
	if id == c.id {
		return c.file
	}
	return ""
}

// files are fetched files by build-id.
type files map[string]string

func (f files) DebugFile(id string) string { return f[id] }

const source = "../naming/debuginfod/testdata/program.c"

// start runs a program until it has written a byte.
func start(t *testing.T, exe string) int {
	t.Helper()
	cmd := exec.Command(exe)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// named finds the image of a name.
func named(t *testing.T, images []doctor.SymbolImage, name string) doctor.SymbolImage {
	t.Helper()
	for i := range images {
		if images[i].Name == name {
			return images[i]
		}
	}
	t.Fatalf("no image %q in %+v", name, images)
	return doctor.SymbolImage{}
}

// TestPostgres: of a running server, Debian's stripped postgres has a name for somewhat more than half of its
// functions; one with its symbols for nearly all.
func TestPostgres(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{})
		images, err := doctor.SymbolsOf(server.PostmasterPID(), doctor.SymbolOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m := named(t, images, "postgres")
		if m.BuildID != imagetest.BuildID(t, filepath.Join(binDir, "postgres")) || m.Deleted || m.InMemory {
			t.Errorf("%+v", m)
		}
		t.Logf("%.1f %% of %d functions named, .symtab %v", m.Share(), m.Functions, m.Symtab)
		if m.Functions < 10_000 || m.Symtab && m.Share() < 99 || !m.Symtab && (m.Share() < 40 || m.Share() > 70) {
			t.Errorf("%d of %d functions named", m.Named, m.Functions)
		}
		if libc := named(t, images, "libc.so.6"); libc.BuildID == "" || libc.Functions < 1000 {
			t.Errorf("%+v", libc)
		}
		if images[0].Name != "postgres" {
			t.Errorf("the first image is %s", images[0].Name)
		}
		doctor.FindPackages(t.Context(), images)
		checkTable(t, images)
	})
}

// checkTable prints a table that is as wide as promised.
func checkTable(t *testing.T, images []doctor.SymbolImage) {
	t.Helper()
	var b bytes.Buffer
	if err := doctor.SymbolTable(&b, images, 0); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s%s", b.String(), strings.Join(doctor.SymbolAdvice(images, "again", false), "\n"))
	for _, line := range append(strings.Split(b.String(), "\n"), doctor.SymbolAdvice(images, "again", false)...) {
		if len(line) > 100 && !strings.Contains(line, "/") && !strings.Contains(line, "! ") {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}

// TestSources checks an image without a debug file, with a cached one, and with all symbols.
func TestSources(t *testing.T) {
	p := imagetest.BuildSplit(t, source)
	full := filepath.Join(t.TempDir(), "full")
	unstrip := exec.CommandContext(t.Context(), "eu-unstrip", "-o", full, p.Exe, p.Debug)
	if out, err := unstrip.CombinedOutput(); err != nil {
		t.Fatalf("eu-unstrip: %v\n%s", err, out)
	}
	bare, err := doctor.SymbolsOfFile(p.Exe, doctor.SymbolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fetched, err := doctor.SymbolsOfFile(p.Exe, doctor.SymbolOptions{Fetched: cached{p.BuildID, p.Debug}})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := doctor.SymbolsOfFile(full, doctor.SymbolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if bare.Complete() || bare.Lines || bare.Symtab || bare.FetchedFile != "" || bare.Named >= fetched.Named {
		t.Errorf("stripped: %+v", bare)
	}
	if !fetched.Complete() || !fetched.Lines || fetched.FetchedFile != p.Debug || fetched.Named < 3 ||
		fetched.Named > fetched.Functions {
		t.Errorf("fetched: %+v", fetched)
	}
	if !whole.Complete() || !whole.Symtab || whole.Named != fetched.Named || whole.Functions != bare.Functions {
		t.Errorf("whole: %+v", whole)
	}
	other := imagetest.BuildSplit(t, source, "-O2")
	wrong, err := doctor.SymbolsOfFile(p.Exe, doctor.SymbolOptions{Fetched: cached{p.BuildID, other.Debug}})
	if err != nil || wrong.FetchedFile != "" || wrong.Named != bare.Named || len(wrong.Problems) == 0 ||
		!strings.Contains(wrong.Problems[len(wrong.Problems)-1], other.BuildID) {
		t.Errorf("a debug file of another build: %+v, %v", wrong, err)
	}
	checkTable(t, []doctor.SymbolImage{bare, fetched, whole, wrong})
}

// TestGoProgram checks that this program has Go's table with the names of all its functions.
func TestGoProgram(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stripped := filepath.Join(t.TempDir(), "stripped")
	if out, err := exec.CommandContext(t.Context(), "strip", "-o", stripped, exe).CombinedOutput(); err != nil {
		t.Fatalf("strip: %v\n%s", err, out)
	}
	m, err := doctor.SymbolsOfFile(stripped, doctor.SymbolOptions{})
	if err != nil || !m.GoTable || m.Symtab || !m.Lines || m.Functions < 1000 || m.Named != m.Functions || !m.Complete() {
		t.Errorf("%+v, %v", m, err)
	}
	checkTable(t, []doctor.SymbolImage{m})
}

// TestSupplement checks the file to which dwz has moved parts: it is found in the cache, and reported as missing if
// it is nowhere.
func TestSupplement(t *testing.T) {
	a := imagetest.BuildSplit(t, source, "-O1", "-gdwarf-4")
	b := imagetest.BuildSplit(t, source, "-O2", "-gdwarf-4")
	file, id := imagetest.Share(t, a, b)
	for name, c := range map[string]struct {
		from    files
		missing string
	}{
		"nowhere": {files{a.BuildID: a.Debug}, id},
		"fetched": {files{a.BuildID: a.Debug, id: file}, ""},
		"another": {files{a.BuildID: a.Debug, id: b.Debug}, id},
	} {
		m, err := doctor.SymbolsOfFile(a.Exe, doctor.SymbolOptions{Fetched: c.from})
		if err != nil || m.FetchedFile != a.Debug || m.MissingSupplement != c.missing || m.Complete() != (c.missing == "") ||
			(m.Supplement == file) != (c.missing == "") || len(m.Problems) > 0 != (c.missing != "") {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		checkTable(t, []doctor.SymbolImage{m})
	}
}

// TestInstalled uses a debug file beside the program, found by its debug link, and a debug file of another build.
func TestInstalled(t *testing.T) {
	p := imagetest.BuildSplit(t, source)
	dir := filepath.Dir(p.Exe)
	beside := filepath.Join(dir, "program.debug")
	link := exec.CommandContext(t.Context(), "objcopy", "--add-gnu-debuglink="+p.Debug, p.Exe)
	if out, err := link.CombinedOutput(); err != nil {
		t.Fatalf("objcopy: %v\n%s", err, out)
	}
	if err := os.Rename(p.Debug, beside); err != nil {
		t.Fatal(err)
	}
	m, err := doctor.SymbolsOfFile(p.Exe, doctor.SymbolOptions{})
	if err != nil || m.DebugFile != beside || m.HowFound != "debuglink" || !m.Complete() || len(m.Problems) > 0 {
		t.Errorf("%+v, %v", m, err)
	}
	elsewhere := t.TempDir()
	folder := filepath.Join(elsewhere, ".build-id", p.BuildID[:2])
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(beside, filepath.Join(folder, p.BuildID[2:]+".debug")); err != nil {
		t.Fatal(err)
	}
	for _, dirs := range [][]string{nil, {"/nonexistent", elsewhere}} {
		m, err := doctor.SymbolsOfFile(p.Exe, doctor.SymbolOptions{DebugDirs: dirs})
		if err != nil || m.Complete() != (dirs != nil) || strings.HasPrefix(m.DebugFile, elsewhere) != (dirs != nil) {
			t.Errorf("debug files below %q: %+v, %v", dirs, m, err)
		}
	}
	other := imagetest.BuildSplit(t, source, "-O2")
	if err := os.Rename(other.Debug, beside); err != nil {
		t.Fatal(err)
	}
	m, err = doctor.SymbolsOfFile(p.Exe, doctor.SymbolOptions{})
	if err != nil || m.DebugFile != "" || m.Complete() || len(m.Problems) != 1 ||
		!strings.Contains(m.Problems[0], other.BuildID) {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestDeleted checks that the functions of a deleted program are still counted, and that the report says it is
// deleted.
func TestDeleted(t *testing.T) {
	p := imagetest.BuildSplit(t, source)
	before, err := doctor.SymbolsOfFile(p.Exe, doctor.SymbolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pid := start(t, p.Exe)
	if err := os.Remove(p.Exe); err != nil {
		t.Fatal(err)
	}
	images, err := doctor.SymbolsOf(pid, doctor.SymbolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := named(t, images, "program")
	if !m.Deleted || m.BuildID != p.BuildID || m.Functions != before.Functions {
		t.Errorf("%+v, before %+v", m, before)
	}
	advice := strings.Join(doctor.SymbolAdvice(images, "again", true), "\n")
	if !strings.Contains(advice, "replaced or removed since the process began: program") {
		t.Error(advice)
	}
}

// TestErrors checks that images which cannot be examined give errors with the cause.
func TestErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no ELF file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]error{"/nonexistent": os.ErrNotExist, "/": nil, text: nil, "/dev/null": nil} {
		if _, err := doctor.SymbolsOfFile(file, doctor.SymbolOptions{}); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", file, err)
		}
	}
	if _, err := doctor.SymbolsOf(1<<30, doctor.SymbolOptions{}); !errors.Is(err, process.ErrGone) {
		t.Error(err)
	}
}

// envRefused makes the test program look at a process as another user.
const envRefused = "SYMBOLS_TEST_PID"

// TestRefused checks that another user's process is refused with a clear error.
func TestRefused(t *testing.T) {
	if pid, err := strconv.Atoi(os.Getenv(envRefused)); err == nil {
		if _, err := doctor.SymbolsOf(pid, doctor.SymbolOptions{}); !errors.Is(err, process.ErrDenied) {
			t.Fatal(err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no second user to be")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), "test")
	data, err := os.ReadFile(self)
	if err == nil {
		err = pgtest.WriteProgram(exe, data)
	}
	for dir := filepath.Dir(exe); err == nil && dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", "^TestRefused$")
	cmd.Env = append(os.Environ(), envRefused+"="+strconv.Itoa(os.Getpid()))
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHostileSymbolNames checks that a path chosen by another user cannot send control sequences to the terminal.
func TestHostileSymbolNames(t *testing.T) {
	var b bytes.Buffer
	err := doctor.SymbolTable(&b, []doctor.SymbolImage{{
		Name: "a\x1b[2Jb\nc", Path: "/x", DebugFile: "/d\x1b[31m", Problems: []string{"one\ntwo\x07"},
		BuildID: hex.EncodeToString(make([]byte, 20)),
	}}, 0)
	if err != nil || regexp.MustCompile(`[\x00-\x09\x0b-\x1f\x7f]`).Match(b.Bytes()) {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestChroot: the mappings of a process in another root directory have the paths of this one, and the packages there
// have the paths of that directory.
func TestChroot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root directory")
	}
	root := t.TempDir()
	program, list := filepath.Join(root, "usr/bin/program"), filepath.Join(root, "var/lib/dpkg/info/theirs.list")
	source := filepath.Join(t.TempDir(), "main.c")
	text := "#include <unistd.h>\nint main(void) { return write(1, \"ready\", 5) != 5 || pause(); }\n"
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(program), 0o755), os.MkdirAll(filepath.Dir(list), 0o755),
		os.WriteFile(list, []byte("/usr/bin/program\n"), 0o600), os.WriteFile(source, []byte(text), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", "-static", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "/usr/bin/program")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatal(err)
	}
	images, err := doctor.SymbolsOf(cmd.Process.Pid, doctor.SymbolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	doctor.FindPackages(t.Context(), images)
	if m := images[0]; m.Path != "/usr/bin/program" || m.Package != "theirs" {
		t.Errorf("%s is of package %q", m.Path, m.Package)
	}
}
