package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// wordy are the packages with texts for SQL users. Their other texts are errors for the worker's log, made by
// fmt.Errorf and errors.New.
var wordy = []string{
	"../../worker/verb/verb.go", "../../worker/verb/words.go", "../../worker/verb/backtrace.go",
	"../../worker/verb/barrier.go",
	"../../worker/verb/memory.go", "../../worker/verb/settings.go", "../../worker/limits/words.go",
	"../../worker/report/render/fault.go", "../../worker/report/render/faultof.go", "../../worker/authz/*.go",
	"../../worker/serve/spool/answer.go", "../../worker/serve/spool/deliver.go", "../../worker/serve/spool/serve.go",
}

// script makes the functions below.
const script = "../../sql/pg_stat_backtrace--1.2.sql" // the complete one

var functions = regexp.MustCompile(
	`CREATE (?:OR REPLACE )?FUNCTION (backtrace\.(?:call|enqueue|guard)\b|@extschema@\.pg_get_backtrace|` +
		`@extschema@\.pg_log_backtrace\((?:pid|VARIADIC)|@extschema@\.pg_request_backtrace\(pids?|` +
		`@extschema@\.pg_backtrace_(?:summary|result)\b|@extschema@\.pg_get_memory_contexts\b)`)

// TestWords compares the code with the table of conditions. Both must contain the same texts.
func TestWords(t *testing.T) {
	t.Parallel()
	words := append(goWords(t), sqlWords(t)...)
	for _, w := range words {
		if !inTable(w) {
			t.Errorf("the code says %q, which conditions_test.go does not list", w)
		}
	}
	for _, c := range conditions {
		if strings.HasPrefix(c.name, "canceled by") { // PostgreSQL's own
			continue
		}
		for _, template := range []string{c.message, c.detail, c.hint} {
			if !madeOf(blank(template), words) {
				t.Errorf("%s: the code does not say %q", c.name, template)
			}
		}
	}
}

// TestManual checks that doc/troubleshooting.md has a row for each error and warning of a call.
func TestManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../doc/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	patterns := manualPatterns(string(text))
	for _, c := range conditions {
		if c.level == notice || strings.HasPrefix(c.name, "canceled by") { // PostgreSQL's own
			continue
		}
		message := blank(c.message)
		if !slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(message) }) {
			t.Errorf("%s: the manual has no row for %q", c.name, c.message)
		}
	}
}

// manualPatterns returns the messages in the first column of the tables. An ellipsis stands for any text.
func manualPatterns(text string) (patterns []*regexp.Regexp) {
	quoted := regexp.MustCompile("`[^`]+`")
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cell, _, _ := strings.Cut(line[2:], " | ")
		for _, message := range quoted.FindAllString(cell, -1) {
			parts := strings.Split(strings.Trim(message, "`"), "…")
			for i := range parts {
				parts[i] = regexp.QuoteMeta(parts[i])
			}
			patterns = append(patterns, regexp.MustCompile("^"+strings.Join(parts, ".*")+"$"))
		}
	}
	return patterns
}

func inTable(words string) bool {
	for _, c := range conditions {
		for _, template := range []string{c.message, c.detail, c.hint} {
			if strings.Contains(blank(template), blank(words)) {
				return true
			}
		}
	}
	return false
}

// blank replaces all verbs by the same one: an integer in one language can be a text in the other.
func blank(template string) string { return verbs.ReplaceAllString(template, "%") }

// madeOf reports whether the template consists of words, with any text in the place of its verbs.
func madeOf(template string, words []string) bool {
	if template == "" || template == "." {
		return true
	}
	if rest, found := strings.CutPrefix(template, "%"); found && madeOf(rest, words) {
		return true
	}
	for _, w := range words {
		if rest, found := strings.CutPrefix(template, blank(w)); found && madeOf(rest, words) {
			return true
		}
	}
	return false
}

// goWords returns the texts of several words in the wordy packages.
func goWords(t *testing.T) []string {
	t.Helper()
	var words []string
	for _, pattern := range wordy {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool { return visit(n, &words) })
		}
	}
	return words
}

// visit collects texts and says whether to look below the node.
func visit(n ast.Node, words *[]string) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.GenDecl:
		return n.Tok != token.CONST // names that the server gives to things
	case *ast.CallExpr:
		switch called(n) {
		case "fmt.Errorf", "errors.New", "Msg", "Dur", "AnErr":
			return false // for the log
		case "Catch": // its first argument names the work, for the log
			for _, argument := range n.Args[1:] {
				ast.Inspect(argument, func(n ast.Node) bool { return visit(n, words) })
			}
			return false
		}
	case *ast.BinaryExpr:
		if text, ok := constant(n); ok {
			collect(text, words)
			return false
		}
	case *ast.BasicLit:
		if text, ok := constant(n); ok {
			collect(text, words)
		}
	}
	return true
}

func collect(text string, words *[]string) {
	if strings.Contains(text, " ") && !strings.Contains(text, "pg_catalog.") && strings.Trim(text, " ") != "milliseconds" {
		*words = append(*words, text)
	}
}

// called returns the name of the called function: fmt.Errorf, or a method's name.
func called(call *ast.CallExpr) string {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := selector.X.(*ast.Ident); ok && (pkg.Name == "fmt" || pkg.Name == "errors") {
		return pkg.Name + "." + selector.Sel.Name
	}
	return selector.Sel.Name
}

// constant returns the value of string literals and sums of them.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, ok1 := constant(e.X)
		right, ok2 := constant(e.Y)
		return left + right, ok1 && ok2 && e.Op == token.ADD
	}
	return "", false
}

var (
	sqlComment = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/`)
	sqlText    = regexp.MustCompile(`'((?:[^']|'')*)'(?:\s*\n\s*'((?:[^']|'')*)')?`)
)

// sqlWords returns the texts of several words in the bodies of the functions.
func sqlWords(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	between := ""
	for i, part := range strings.Split(sqlComment.ReplaceAllString(string(data), ""), "$$") {
		if i%2 == 1 && functions.MatchString(between[max(strings.LastIndex(between, "CREATE "), 0):]) {
			words = append(words, bodyWords(part)...)
		}
		between = part
	}
	if len(words) < 15 {
		t.Fatalf("only %q in %s", words, script)
	}
	return words
}

// bodyWords returns the texts of several words in a body; PostgreSQL joins literals on consecutive lines.
func bodyWords(body string) []string {
	var words []string
	for _, match := range sqlText.FindAllStringSubmatch(body, -1) {
		w := strings.ReplaceAll(match[1]+match[2], "''", "'")
		if strings.Contains(w, " ") && strings.IndexFunc(w, letter) >= 0 && !internal(w) {
			words = append(words, w)
		}
	}
	return words
}

func letter(r rune) bool { return r >= 'a' && r <= 'z' }

// internal are texts in the script that no user sees: the statement that writes a request, and the log entry, which
// is not a condition.
func internal(w string) bool {
	return strings.HasPrefix(w, "COPY (SELECT ") || w == "2 ms" || w == "1 second" || w == "backtrace of PID %s" ||
		w == `%s\n%s` || strings.HasPrefix(w, "SELECT backtrace.") || strings.HasPrefix(w, `\nSQL statement `)
}
