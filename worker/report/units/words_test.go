package units

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestPlural(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n          uint64
		text, want string
	}{
		{0, "%d {stack lacks|stacks lack} frames", "0 stacks lack frames"},
		{1, "%d {stack lacks|stacks lack} frames", "1 stack lacks frames"},
		{2, "The {statement|statements} of %d {stack has|stacks have} no id: {it|they}", "The statements of 2 stacks have no id: they"},
		{1, "The {statement|statements} of %d {stack has|stacks have} no id: {it|they}", "The statement of 1 stack has no id: it"},
		{1, "%d: {", "1: "}, {3, "", ""},
	} {
		if got := Plural(c.n, c.text); got != c.want {
			t.Errorf("%d, %q: %q, want %q", c.n, c.text, got, c.want)
		}
	}
}

// TestCountedWords: no text of the worker has a number before a plural that is wrong for 1. Count and Plural make such texts.
func TestCountedWords(t *testing.T) {
	t.Parallel()
	counted := regexp.MustCompile(`(\w+ )?%d ((?:more|other|further|different|queued|recorded|memory|anonymous|live) )?` +
		`(stacks|samples|sessions|frames|sweeps|processes|rows|files|threads|contexts|hits|waits|executions|requests|records|nodes|` +
		`findings|lines|labels|databases|goroutines|blockers|texts|times|functions|profiles|parts|reads|processors|statements)\b`)
	// Words before the number after which it is a limit that is never 1, or after which the noun counts something else.
	limit := regexp.MustCompile(`^(than|most|least|last|to|of) $`)
	fixed := []string{
		`"%d servers run on this host`, `can be given %d times`, `once, or %d times`, // at least 2
		`%d processes: %s`, `PID %d waits`, `process %d waits`, `only %d stacks are kept`, `the %d functions of postgres`,
		`has %d memory contexts below level`, `one in %d waits`, `(%d samples)`, `return beyond(`, `err = beyond(`, `beyond %d different samples`, `%d processes with the same stack`, `(%d functions without a name)`, `has %d functions of that name`,
		`"%w: %d `, `looking up %d processes`, `expected (%d processes)`, `(%d processes were looked at)`, // of developers
	}
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for number, line := range strings.Split(string(text), "\n") {
			for _, m := range counted.FindAllStringSubmatch(line, -1) {
				known := limit.MatchString(m[1])
				for _, part := range fixed {
					known = known || strings.Contains(line, part)
				}
				if !known {
					t.Errorf("%s:%d: %s", path, number+1, m[0])
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
