package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	comments   = regexp.MustCompile(`(?m)--.*$`)
	definition = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?FUNCTION (\S+?)\(`)
	internal   = regexp.MustCompile(`\bbacktrace\.(\w+)\(`)
	declared   = regexp.MustCompile(`(?m)^ {4}(\w+) +(?:CONSTANT +)?([\w.%]+(?: precision)?(?:\[\])?)(?: *:=.*)?; *$`)
	counter    = regexp.MustCompile(`\bFOR (\w+) IN \d+\.\.`)
	withCast   = regexp.MustCompile(`^(?:.*\)|[\w.]+(?:\[\d+\])?|[\w ]*'.*'|ARRAY\[.*\])::([\w.]+(?:\[\])?)$`)
)

// function is an SQL function of a script.
type function struct {
	name  string
	types []string          // of its parameters
	known map[string]string // types of its parameters and variables
	body  string
}

// closing returns the index of the parenthesis that closes the one before text, outside of strings.
func closing(text string) int {
	depth, quoted := 1, false
	for i, c := range text {
		switch {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// elements splits a list at its commas outside of parentheses, brackets and strings.
func elements(list string) []string {
	var out []string
	depth, quoted, begin := 0, false, 0
	for i, c := range list {
		switch {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		case c == ',' && depth == 0:
			out, begin = append(out, strings.TrimSpace(list[begin:i])), i+1
		}
	}
	if last := strings.TrimSpace(list[begin:]); last != "" {
		out = append(out, last)
	}
	return out
}

// functions returns the functions of a script without comments.
func functions(t *testing.T, script string) []function {
	t.Helper()
	var out []function
	places := definition.FindAllStringSubmatchIndex(script, -1)
	for i, place := range places {
		end := len(script)
		if i+1 < len(places) {
			end = places[i+1][0]
		}
		text := script[place[1]:end]
		f := function{name: script[place[2]:place[3]], known: map[string]string{}, body: text[closing(text)+1:]}
		for _, parameter := range elements(text[:closing(text)]) {
			parameter, _, _ = strings.Cut(parameter, " DEFAULT ")
			parameter, out := strings.CutPrefix(parameter, "OUT ")
			parameter = strings.TrimPrefix(parameter, "VARIADIC ")
			name, kind, _ := strings.Cut(strings.ReplaceAll(parameter, `"`, ""), " ")
			f.known[name] = kind
			if !out {
				f.types = append(f.types, kind)
			}
		}
		if columns := regexp.MustCompile(`(?s)^ RETURNS TABLE \((.*?)\)\n`).FindStringSubmatch(
			strings.ReplaceAll(f.body, "\nRETURNS", " RETURNS")); columns != nil {
			for _, column := range elements(columns[1]) {
				name, kind, _ := strings.Cut(column, " ")
				f.known[name] = kind
			}
		}
		for _, m := range declared.FindAllStringSubmatch(f.body, -1) {
			f.known[m[1]] = strings.Replace(m[2], "backtrace.token.seal%TYPE", "backtrace.seal", 1)
		}
		for _, m := range counter.FindAllStringSubmatch(f.body, -1) {
			f.known[m[1]] = "int"
		}
		out = append(out, f)
	}
	return out
}

// typeOf returns the type of an argument if the text alone shows it: of a variable, or of an expression with a cast.
func (f *function) typeOf(argument string) string {
	if m := withCast.FindStringSubmatch(argument); m != nil {
		return m[1]
	}
	return f.known[argument]
}

// TestCallsAreExact checks each call of a function in schema backtrace: it passes all arguments, and each has exactly
// the declared type. Then no overload, of whichever types, fits a call as well as the extension's function.
func TestCallsAreExact(t *testing.T) {
	t.Parallel()
	scripts, err := scripts("../../sql/src")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pg_stat_backtrace--1.2.sql", "pg_stat_backtrace--1.1--1.2.sql"} {
		all := functions(t, comments.ReplaceAllString(scripts[name], ""))
		signatures := map[string][]string{}
		for _, f := range all {
			if _, twice := signatures[f.name]; twice && strings.HasPrefix(f.name, "backtrace.") {
				t.Errorf("%s is overloaded", f.name)
			}
			signatures[f.name] = f.types
		}
		calls := 0
		for _, f := range all {
			calls += f.check(t, signatures)
		}
		if calls < 55 {
			t.Errorf("%s: only %d calls found", name, calls)
		}
	}
}

// check checks the calls in the function's body and returns their number.
func (f *function) check(t *testing.T, signatures map[string][]string) int {
	t.Helper()
	// Other statements that name functions, and the names of functions and statements in strings.
	body := regexp.MustCompile(`(?ms)^(COMMENT|GRANT|REVOKE|DROP|ALTER)\b.*?;$`).ReplaceAllString(f.body, "")
	body = regexp.MustCompile(`'backtrace\.[^']*'::regprocedure|'SELECT [^']*'::text`).ReplaceAllStringFunc(body,
		func(s string) string { return "''" + s[strings.LastIndex(s, "::"):] })
	calls := 0
	for _, place := range internal.FindAllStringSubmatchIndex(body, -1) {
		name := "backtrace." + body[place[2]:place[3]]
		types, ours := signatures[name]
		if !ours {
			continue // a table with a list of columns
		}
		calls++
		rest := body[place[1]:]
		var got []string
		for _, argument := range elements(rest[:closing(rest)]) {
			got = append(got, f.typeOf(argument))
		}
		if !slices.Equal(got, types) {
			t.Errorf("%s calls %s(%s): argument types %q, declared %q", f.name, name, rest[:closing(rest)], got, types)
		}
	}
	return calls
}
