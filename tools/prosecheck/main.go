// Command prosecheck finds words that make prose hard to read, in the manual and in comments, and fails on new ones.
//
//	prosecheck          compare each file with the allow list, exit with status 1 if a file has more findings
//	prosecheck -list    print every finding
//	prosecheck -write   write the allow list anew
//
// The allow list, tools/prosecheck/allowed.txt, has the number of findings of each file. It only shrinks: a file
// with fewer findings than allowed is reported, too, until -write lowers its number.
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const allowList = "tools/prosecheck/allowed.txt"

// unclear are words and phrases that readers stumble over: missing actors, double negation, idioms.
var unclear = regexp.MustCompile(`(?i)\b(who|nobody|somebody|anybody|whoever|that of|one that|those that|` +
	`what it|what is|so does|so do|nor|unless told|is told|are told|tells|held against|stands still|goes on|` +
	`of its own|be had|says so)\b`)

// code is text between backquotes, which is not prose.
var code = regexp.MustCompile("`[^`]*`")

// finding is an unclear word in a line of a file.
type finding struct {
	file string
	line int
	word string
	text string
}

func main() {
	list := flag.Bool("list", false, "print every finding")
	write := flag.Bool("write", false, "write the allow list anew")
	flag.Parse()
	if err := run(*list, *write); err != nil {
		fmt.Fprintln(os.Stderr, "prosecheck:", err)
		os.Exit(1)
	}
}

func run(list, write bool) error {
	found, err := inTree()
	if err != nil {
		return err
	}
	counts := make(map[string]int)
	for _, f := range found {
		counts[f.file]++
		if list {
			fmt.Fprintf(os.Stdout, "%s:%d: %q: %s\n", f.file, f.line, f.word, f.text)
		}
	}
	if write {
		return writeAllowed(counts)
	}
	allowed, err := readAllowed()
	if err != nil {
		return err
	}
	return compare(counts, allowed, found)
}

// compare reports files with more findings than allowed, and files whose number in the allow list is too high.
func compare(counts, allowed map[string]int, found []finding) error {
	worse := 0
	for _, file := range slices.Sorted(maps.Keys(counts)) {
		if counts[file] <= allowed[file] {
			continue
		}
		worse++
		fmt.Fprintf(os.Stdout, "%s has %d unclear words, %d are allowed:\n", file, counts[file], allowed[file])
		for _, f := range found {
			if f.file == file {
				fmt.Fprintf(os.Stdout, "  %s:%d: %q: %s\n", f.file, f.line, f.word, f.text)
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(allowed)) {
		if counts[file] < allowed[file] {
			fmt.Fprintf(os.Stdout, "%s has only %d unclear words left, not %d: scripts/tool.sh prosecheck -write\n",
				file, counts[file], allowed[file])
		}
	}
	if worse > 0 {
		return fmt.Errorf("%d files have new unclear words: name the actor, and say it in the field's words", worse)
	}
	return nil
}

// inTree returns the findings in the files that git tracks or would track.
func inTree() ([]finding, error) {
	out, err := exec.CommandContext(context.Background(), "git", "ls-files", "-co", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var found []finding
	for file := range strings.FieldsSeq(string(out)) {
		if !isProse(file) {
			continue
		}
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			return nil, err
		}
		found = append(found, inText(file, text)...)
	}
	return found, nil
}

// isProse reports whether a file has prose that this project wrote. The changelog of earlier versions stays as it was.
func isProse(file string) bool {
	if strings.Contains(file, "testdata/") || file == "CHANGELOG.md" || strings.HasPrefix(file, "tools/prosecheck/") {
		return false
	}
	return marker(file) != nil || strings.HasSuffix(file, ".md")
}

// marker matches the beginning of a comment in a file of this kind; nil if its comments are not looked at.
func marker(file string) *regexp.Regexp {
	switch filepath.Ext(file) {
	case ".go", ".c", ".h":
		return regexp.MustCompile(`(^|\s)(//|/?\*)\s`)
	case ".sql":
		return regexp.MustCompile(`(^|\s)--\s`)
	case ".sh", ".pl", ".pm":
		return regexp.MustCompile(`(^|\s)#\s`)
	}
	if filepath.Base(file) == "Makefile" {
		return regexp.MustCompile(`(^|\s)##?\s`)
	}
	return nil
}

// inText returns the findings in one file: in all of a Markdown file except its code blocks, else in the comments.
func inText(file string, text []byte) []finding {
	var found []finding
	comment := marker(file)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		switch {
		case comment == nil && strings.HasPrefix(line, "    "):
			continue // a code block
		case comment != nil:
			at := comment.FindStringIndex(line)
			if at == nil {
				continue
			}
			line = line[at[1]:]
		}
		for _, word := range unclear.FindAllString(code.ReplaceAllString(line, ""), -1) {
			found = append(found, finding{file, number, word, strings.TrimSpace(line)})
		}
	}
	return found
}

func readAllowed() (map[string]int, error) {
	text, err := os.ReadFile(allowList)
	if err != nil {
		return nil, err
	}
	allowed := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		file, count, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(count)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: line %q is not a file and a number", allowList, line)
		}
		allowed[file] = n
	}
	return allowed, nil
}

func writeAllowed(counts map[string]int) error {
	var b strings.Builder
	for _, file := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%s %d\n", file, counts[file])
	}
	return os.WriteFile(allowList, []byte(b.String()), 0o644)
}
