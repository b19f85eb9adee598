package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"pg_stat_backtrace/worker/cli"
)

// TestPages makes every page and completion, and looks for what a reader needs in them.
func TestPages(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir, "1.2.3", "2026-11-26"); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range documented(cli.Commands("1.2.3")) {
		text := read(t, filepath.Join(dir, "man1", name(cmd)+".1"))
		for _, want := range []string{
			".TH ", "2026\\-11\\-26", "1.2.3", `.SH "NAME"`, `.SH "SYNOPSIS"`, `.SH "EXIT STATUS"`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("page of %q lacks %q", cmd.CommandPath(), want)
			}
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(text, `\fB\-\-`+escape(f.Name)+`\fR`) {
				t.Errorf("page of %q lacks --%s", cmd.CommandPath(), f.Name)
			}
		})
		for line := range strings.SplitSeq(text, "\n") {
			if strings.HasPrefix(line, "'") {
				t.Errorf("page of %q: roff takes this line for a macro: %q", cmd.CommandPath(), line)
			}
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if text := read(t, filepath.Join(dir, "completions", shell)); !strings.Contains(text, "pg_stat_backtrace") {
			t.Errorf("completion for %s does not name the program", shell)
		}
	}
}

// TestReproducible makes the pages twice and compares.
func TestReproducible(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	for _, dir := range []string{one, two} {
		if err := write(dir, "1.2.3", "2026-11-26"); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(one, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(one, path)
		if err == nil && read(t, path) != read(t, filepath.Join(two, relative)) {
			t.Errorf("%s differs", relative)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "--flag": `\-\-flag`, `a\b`: `a\eb`, "it's": `it\(aqs`,
	} {
		if got := escape(in); got != want {
			t.Errorf("escape(%q) = %q, want %q", in, got, want)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
