package main

import (
	"regexp"
	"strings"

	"pg_stat_backtrace/unwind/selfnames"
)

var (
	noise      = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`)
	identifier = regexp.MustCompile(`[A-Za-z_]\w*`)
	directive  = regexp.MustCompile(`(?m)^[ \t]*#(?:[^\n\\]|\\\n|\\.)*`)
	define     = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)]*\))?((?:[^\n\\]|\\\n|\\.)*)`)
	condition  = regexp.MustCompile(`^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b`)
	includes   = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]`)
	// definition is the definition of a function: its type and attributes, which may be on separate lines, its name
	// and parameters, and its body.
	definition = regexp.MustCompile(`(?m)^((?:[A-Za-z_][\w \t*(),]*\n){0,3}(?:[A-Za-z_][\w \t*]*[ \t*])?)` +
		`([A-Za-z_]\w*)[ \t]*\([^;{}]*?\)[^;{}()]*?\n\{((?s:.*?))\n\}`)
	// otherStyle begins a function that definition does not find.
	otherStyle = regexp.MustCompile(`(?m)^[A-Za-z_][^;{}=\n]*\)[ \t]*\{[ \t]*$`)
)

// templates are headers that define functions depending on definitions of the including file.
var templates = []string{"simplehash.h", "sort_template.h", "radixtree.h", ".c"}

// clean blanks the comments and strings of C. All lines stay where they were.
func clean(text string) string {
	return noise.ReplaceAllStringFunc(text, func(s string) string {
		switch s[0] {
		case '"':
			return `""`
		case '\'':
			return "0"
		}
		return strings.Repeat("\n", strings.Count(s, "\n")) + " "
	})
}

type set map[string]bool

func identifiers(text string) set {
	s := make(set)
	for _, w := range identifier.FindAllString(text, -1) {
		s[w] = true
	}
	return s
}

// macros are the definitions of each macro: the identifiers in them.
type macros struct {
	of   map[string][]set
	text map[string]string
}

func newMacros() *macros { return &macros{make(map[string][]set), make(map[string]string)} }

func (m *macros) add(text string) {
	for _, d := range define.FindAllStringSubmatch(text, -1) {
		m.of[d[1]] = append(m.of[d[1]], identifiers(d[2]))
		m.text[d[1]] += d[2]
	}
}

// with returns the macros of both.
func (m *macros) with(other *macros) *macros {
	all := newMacros()
	for _, from := range []*macros{m, other} {
		for name, sets := range from.of {
			all.of[name] = append(all.of[name], sets...)
		}
	}
	return all
}

// reporting returns the identifiers by which a function reports: the reporters, and macros that expand to one. With
// surely, this must hold for all definitions of the macro.
func (m *macros) reporting(surely bool) set {
	found := set{"errfinish": true, "errsave_finish": true, "s_lock": true}
	for grown := true; grown; {
		grown = false
		for name, sets := range m.of {
			if !found[name] && meets(sets, found, surely) {
				found[name], grown = true, true
			}
		}
	}
	return found
}

func meets(sets []set, found set, all bool) bool {
	n := 0
	for _, s := range sets {
		if overlap(s, found) {
			n++
		}
	}
	return n == len(sets) && n > 0 || !all && n > 0
}

func overlap(a, b set) bool {
	for w := range a {
		if b[w] {
			return true
		}
	}
	return false
}

// expand adds the expansions of the macros among identifiers.
func (m *macros) expand(ids set) set {
	out := make(set, len(ids))
	todo := make([]string, 0, len(ids))
	for w := range ids {
		todo = append(todo, w)
	}
	for len(todo) > 0 {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if out[w] {
			continue
		}
		out[w] = true
		for _, s := range m.of[w] {
			for x := range s {
				if !out[x] {
					todo = append(todo, x)
				}
			}
		}
	}
	return out
}

// unconditional blanks the lines between #if and #endif.
func unconditional(text string) string {
	lines := strings.Split(text, "\n")
	depth := 0
	for i, line := range lines {
		word := condition.FindStringSubmatch(line)
		switch {
		case word == nil && depth > 0:
			lines[i] = ""
		case word != nil && word[1] == "endif":
			depth--
		case word != nil:
			depth++
		}
	}
	return strings.Join(lines, "\n")
}

// withoutDirectives blanks the lines of the preprocessor.
func withoutDirectives(text string) string {
	return directive.ReplaceAllStringFunc(text, func(s string) string {
		return strings.Repeat("\n", strings.Count(s, "\n"))
	})
}

// parser reads one file.
type parser struct {
	file      selfnames.SourceFile
	index     map[string]int
	all       *macros
	reporting set
	surely    set
	body      string
	sureLines []string
	bodies    [][2]int            // where in body
	again     map[string][][2]int // further bodies of a function that has several
}

// parse lists the functions of a file.
func parse(name, raw string, headers *macros) selfnames.SourceFile {
	text := clean(raw)
	own := newMacros()
	own.add(text)
	p := parser{index: make(map[string]int), again: make(map[string][][2]int), all: headers.with(own)}
	p.file.Path = name
	p.file.Generated = !strings.HasSuffix(name, ".c")
	p.reporting, p.surely = p.all.reporting(false), p.all.reporting(true)
	p.body = withoutDirectives(text)
	p.sureLines = strings.Split(withoutDirectives(unconditional(text)), "\n")
	p.file.Mixed = includesSource(raw) || otherStyle.MatchString(p.body)
	for _, m := range definition.FindAllStringSubmatchIndex(p.body, -1) {
		name := p.body[m[4]:m[5]]
		if _, again := p.index[name]; again {
			p.again[name] = append(p.again[name], [2]int{m[6], m[7]})
			continue
		}
		p.index[name] = len(p.file.Functions)
		p.bodies = append(p.bodies, [2]int{m[6], m[7]})
		static := identifiers(p.body[m[2]:m[3]])["static"]
		p.file.Functions = append(p.file.Functions, selfnames.SourceFunction{Name: name, Static: static})
	}
	for i := range p.file.Functions {
		p.function(i)
	}
	p.addresses()
	p.generated(raw, own)
	return p.file
}

// sureText returns the part of body[from:to] outside of any #if.
func (p *parser) sureText(from, to int) string {
	first := strings.Count(p.body[:from], "\n")
	last := strings.Count(p.body[:to], "\n")
	return strings.Join(p.sureLines[first:min(last+1, len(p.sureLines))], "\n")
}

// function records what a function mentions, and whether it reports. If it has several bodies, any may be compiled.
func (p *parser) function(i int) {
	f := &p.file.Functions[i]
	f.Reports = !p.file.Generated
	for _, at := range append([][2]int{p.bodies[i]}, p.again[f.Name]...) {
		text := p.body[at[0]:at[1]]
		ids := p.all.expand(identifiers(text))
		f.MayReport = f.MayReport || overlap(ids, p.reporting)
		f.Reports = f.Reports && overlap(identifiers(p.sureText(at[0], at[1])), p.surely)
		for w := range ids {
			if j, ok := p.index[w]; ok && j != i {
				f.Mentions = append(f.Mentions, j)
			}
		}
		for w := range pointersIn(p.all, text) {
			if j, ok := p.index[w]; ok {
				f.Points = append(f.Points, j)
			}
		}
	}
}

var maybeCall = regexp.MustCompile(`[A-Za-z_]\w*\b[ \t\n]*\(?`)

// pointersIn returns the identifiers that are not called at their place, and the expansions of macros.
func pointersIn(m *macros, text string) set {
	found := make(set)
	for _, w := range maybeCall.FindAllString(text, -1) {
		name := identifier.FindString(w)
		if !strings.HasSuffix(w, "(") {
			found[name] = true
		}
		if m.of[name] != nil {
			for x := range m.expand(set{name: true}) {
				found[x] = true
			}
		}
	}
	return found
}

// addresses records the functions whose address is taken outside of any #if.
func (p *parser) addresses() {
	text := strings.Join(p.sureLines, "\n")
	for _, w := range maybeCall.FindAllString(text, -1) {
		if strings.HasSuffix(w, "(") {
			continue
		}
		if i, ok := p.index[identifier.FindString(w)]; ok {
			p.file.Functions[i].Taken = true
		}
	}
}

// includesSource reports whether a file includes other source files.
func includesSource(raw string) bool {
	for _, m := range includes.FindAllStringSubmatch(raw, -1) {
		if strings.HasSuffix(m[1], ".c") {
			return true
		}
	}
	return false
}

// generated adds one function without a name for all functions that macros and templates make in the file.
func (p *parser) generated(raw string, own *macros) {
	template := false
	for _, m := range includes.FindAllStringSubmatch(raw, -1) {
		for _, t := range templates {
			template = template || strings.Contains(m[1], t)
		}
	}
	var unknown selfnames.SourceFunction
	unknown.Static = true
	seen := make(map[int]bool)
	for name := range own.of {
		if !template && !strings.Contains(own.text[name], "{") {
			continue
		}
		for w := range p.all.expand(set{name: true}) {
			if i, ok := p.index[w]; ok && !seen[i] {
				seen[i] = true
				unknown.Mentions = append(unknown.Mentions, i)
			}
		}
	}
	if len(unknown.Mentions) > 0 {
		p.file.Functions = append(p.file.Functions, unknown)
	}
}
