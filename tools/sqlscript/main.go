// Command sqlscript generates the extension's scripts of the current version from their sources in sql/src: the
// complete script, and the update from the previous version. Of SQL it knows only the words CREATE FUNCTION and
// CREATE VIEW.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// suffix marks a template. The script has the name without it.
const suffix = ".in"

var (
	// include is a line that is replaced by another file, with the line's indentation. Options follow the name:
	// "replace" changes CREATE to CREATE OR REPLACE for functions and views, "name=value" replaces @name@.
	include = regexp.MustCompile(`^( *)-- @include (\S+)((?: \S+)*)$`)
	create  = regexp.MustCompile(`(?m)^CREATE (FUNCTION|VIEW) `)
)

const generated = "-- @generated@"

const notice = "-- Generated from the files in sql/src: change those, and run \"make sql\"."

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run writes the scripts below top, the top directory of the source tree.
func run(top string) error {
	scripts, err := scripts(filepath.Join(top, "sql/src"))
	if err != nil {
		return err
	}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(top, "sql", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// scripts returns the text of each script, by file name.
func scripts(src string) (map[string]string, error) {
	templates, err := filepath.Glob(filepath.Join(src, "*"+suffix))
	if err != nil || len(templates) == 0 {
		return nil, fmt.Errorf("no templates in %s: %w", src, err)
	}
	out := make(map[string]string, len(templates))
	for _, path := range templates {
		text, err := expand(src, filepath.Base(path))
		if err != nil {
			return nil, err
		}
		out[strings.TrimSuffix(filepath.Base(path), suffix)] = strings.Replace(text, generated, notice, 1)
	}
	return out, nil
}

// expand returns a file with its includes.
func expand(src, name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(src, name))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		m := include.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			b.WriteString(line)
			continue
		}
		text, err := expand(src, m[2])
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		for part := range strings.Lines(apply(text, strings.Fields(m[3]))) {
			if part != "\n" {
				b.WriteString(m[1])
			}
			b.WriteString(part)
		}
	}
	return b.String(), nil
}

// apply applies the options of an include.
func apply(text string, options []string) string {
	for _, option := range options {
		if name, value, found := strings.Cut(option, "="); found {
			text = strings.ReplaceAll(text, "@"+name+"@", value)
		} else if option == "replace" {
			text = create.ReplaceAllString(text, "CREATE OR REPLACE $1 ")
		}
	}
	return text
}
