package repository

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(text, -1) {
		heading := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		heading = dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
		found = append(found, strings.ReplaceAll(heading, " ", "-"))
	}
	return found
}

// TestLinks follows each link between the pages of the manual, to the heading that it names.
func TestLinks(t *testing.T) {
	pages := []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md"}
	for _, pattern := range []string{"doc/*.md", "doc/internals/*.md"} {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range found {
			name, err := filepath.Rel(top, page)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, name)
		}
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	n := 0
	for _, page := range pages {
		text := read(t, filepath.Join(top, page))
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, ":") {
				continue // another site
			}
			n++
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if matches, err := filepath.Glob(filepath.Join(top, target)); err != nil || len(matches) == 0 {
				t.Errorf("%s: no file %s", page, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, filepath.Join(top, target))), anchor) {
				t.Errorf("%s: no heading %s", page, m[1])
			}
		}
	}
	if n < 100 {
		t.Errorf("%d links", n)
	}
}

// TestReadmeLength keeps README.md short enough to read in a minute.
func TestReadmeLength(t *testing.T) {
	if n := strings.Count(read(t, filepath.Join(top, "README.md")), "\n"); n > 150 {
		t.Errorf("README.md has %d lines, and may have 150", n)
	}
}

// TestMakeTargetsExist looks for each target that the release checklist and the workflows call.
func TestMakeTargetsExist(t *testing.T) {
	targets := read(t, filepath.Join(top, "Makefile"))
	_, release, _ := strings.Cut(read(t, filepath.Join(top, "CONTRIBUTING.md")), "\n## Release\n")
	release, _, _ = strings.Cut(release, "\n## ")
	texts := map[string]string{"the checklist": release}
	for _, workflow := range []string{"check.yml", "release.yml"} {
		texts[workflow] = read(t, filepath.Join(top, ".github/workflows", workflow))
	}
	for name, text := range texts {
		found := regexp.MustCompile("make ([a-z][a-z0-9-]*)").FindAllStringSubmatch(text, -1)
		for _, m := range found {
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(m[1]) + `:.*## `).MatchString(targets) {
				t.Errorf("%s calls make %s, which the Makefile does not have", name, m[1])
			}
		}
		if len(found) == 0 {
			t.Errorf("%s calls no target", name)
		}
	}
}

// TestTableCells keeps each cell of a table at two sentences: longer texts belong below the table.
func TestTableCells(t *testing.T) {
	quoted := regexp.MustCompile("`[^`]*`")
	end := regexp.MustCompile(`\. +[A-Z\[_]`)
	for _, pattern := range []string{"README.md", "SECURITY.md", "doc/*.md"} {
		pages, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, page := range pages {
			for line := range strings.Lines(read(t, page)) {
				if !strings.HasPrefix(line, "| ") {
					continue
				}
				for cell := range strings.SplitSeq(line, " | ") {
					if len(end.FindAllString(quoted.ReplaceAllString(cell, "_"), -1)) > 1 {
						t.Errorf("%s: more than two sentences: %s", filepath.Base(page), cell)
					}
				}
			}
		}
	}
}
