package repository

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// others are variables that scripts read and that CONTRIBUTING.md does not describe: the caller's shell sets them,
// or one script for another.
//
//nolint:gochecknoglobals // a list
var others = []string{
	"APK", "CLANG", "GIVEN_BINDIRS", "GO", "GOPACKAGE", "HOME", "KERNEL_ROOT", "MOUNTED", "PATH", "PERL_PATH", "PG_BIN",
	"PG_EXPERIMENTAL", "PGSB_ARCH_PROGRAM", "PGSB_ARCH_PROGRAMS", "PGSB_ARCH_YAMA", "PGSB_FIRST_FILES",
	"PGSB_FOREIGN_BINDIR", "PGSB_FOREIGN_ROOT", "PGSB_MUSL_BINDIR", "PGSB_TEST_PROCESSOR_TIMES", "PROGRAM", "SERVER_USER",
	"SOURCE_DATE_EPOCH", "TESTS_MEMORY", "TMPDIR", "VERSION_BINS", "XDG_CACHE_HOME",
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// listed reports whether a text in backquotes is the name, or begins with it.
func listed(text, name string) bool {
	return regexp.MustCompile("`(?:make )?" + regexp.QuoteMeta(name) + "(?:`|[= ])").MatchString(text)
}

// TestTargets looks for the targets of the Makefile.
func TestTargets(t *testing.T) {
	text := read(t, filepath.Join(top, "CONTRIBUTING.md"))
	n := 0
	targets := regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)
	for _, m := range targets.FindAllStringSubmatch(read(t, filepath.Join(top, "Makefile")), -1) {
		n++
		if !listed(text, m[1]) {
			t.Errorf("make %s is not there", m[1])
		}
	}
	if n < 30 {
		t.Errorf("%d targets", n)
	}
}

// TestVariables looks for the variables that scripts have a default for, and those of the tests.
func TestVariables(t *testing.T) {
	text := read(t, filepath.Join(top, "CONTRIBUTING.md"))
	inScripts := regexp.MustCompile(`\$\{([A-Z][A-Z0-9_]*):[-?=+]`)
	inTests := regexp.MustCompile(`(?:Getenv|LookupEnv)\("((?:PGSB|STACKORACLE)_[A-Z0-9_]+)"\)`)
	set := regexp.MustCompile(`"((?:PGSB|STACKORACLE)_[A-Z0-9_]+)=`) // by a test, for its children
	read, internal := make(map[string]string), make(map[string]bool)
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "bin" || name == "dist"):
			return fs.SkipDir
		case entry.IsDir() || !slices.Contains([]string{".go", ".sh"}, filepath.Ext(name)) && name != "Makefile":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		variables := inScripts
		if strings.HasSuffix(name, ".go") {
			variables = inTests
			for _, m := range set.FindAllSubmatch(source, -1) {
				internal[string(m[1])] = true
			}
		}
		for _, m := range variables.FindAllSubmatch(source, -1) {
			read[string(m[1])] = path
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(read) < 60 {
		t.Errorf("%d variables", len(read))
	}
	for name, path := range read {
		if !listed(text, name) && !internal[name] && !slices.Contains(others, name) {
			t.Errorf("%s of %s is not there", name, path)
		}
	}
}
