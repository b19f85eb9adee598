package main

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/pg/layout"
)

type options struct {
	headers, source, known, compiler, output string
	major                                    int
}

// result is a layout in the making.
type result struct {
	values map[string]int64
	names  map[string]map[int]string // tables of names
	source []string
}

func generate(o *options) error {
	r := &result{values: make(map[string]int64), names: make(map[string]map[int]string)}
	if o.headers != "" {
		if err := r.compileAll(o); err != nil {
			return err
		}
	}
	if o.known != "" {
		if err := r.addKnown(o.known); err != nil {
			return err
		}
	}
	text, err := r.text(o.major)
	if err != nil {
		return err
	}
	return os.WriteFile(o.output, text, 0o644) //nolint:gosec // a source file
}

// compileAll evaluates everything that package layout declares.
func (r *result) compileAll(o *options) error {
	c := &compiler{program: o.compiler, includes: []string{o.headers}}
	version, err := macro(filepath.Join(o.headers, "pg_config.h"), "PG_VERSION")
	if err != nil {
		return err
	}
	if o.major == 0 {
		if o.major, err = strconv.Atoi(version[:min(2, len(version))]); err != nil {
			return fmt.Errorf("version %q of the headers: %w", version, err)
		}
	}
	r.source = append(r.source, "headers of "+version)
	if o.source != "" {
		c.includes = append(c.includes, filepath.Join(o.source, "src/include"))
		sourceVersion, err := packageVersion(o.source)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(sourceVersion, strconv.Itoa(o.major)) {
			return fmt.Errorf("the sources are of %s, the headers of %s", sourceVersion, version)
		}
		r.source = append(r.source, "sources of "+sourceVersion)
	}
	files := map[string][]entry{"": enumerators()}
	structures(func(_, file string, entries []entry) { files[file] = append(files[file], entries...) })
	for file, entries := range files {
		prologue := public()
		if file != "" {
			var ok bool
			if prologue, ok = private(o.source, file); !ok {
				continue // absent
			}
		}
		values, err := c.evaluate(prologue, entries)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, e := range entries { // in order: the first alternative counts
			value, ok := values[e.name]
			if !ok {
				continue
			}
			name, _, _ := strings.Cut(e.name, "|")
			if table, text, ok := strings.Cut(name, "="); ok {
				r.name(table, int(value), text)
			} else if _, ok := r.values[name]; !ok {
				r.values[name] = value
			}
		}
	}
	return nil
}

// structures calls f for each structure of the layout.
func structures(f func(name, file string, entries []entry)) {
	t := reflect.TypeFor[layout.Layout]()
	for i := range t.NumField() {
		s := t.Field(i)
		if s.Type.Kind() != reflect.Struct {
			continue
		}
		var entries []entry
		c := s.Tag.Get("c")
		for j := range s.Type.NumField() {
			member := s.Type.Field(j)
			name := s.Name + "." + member.Name
			if c == "" { // an enumeration
				entries = append(entries, entry{name, member.Tag.Get("c")})
				continue
			}
			var alternatives []string
			for structure := range strings.SplitSeq(c, "|") { // the outer structure first
				if member.Name == "Size" && member.Tag == "" {
					alternatives = append(alternatives, "sizeof("+structure+")")
					continue
				}
				for m := range strings.SplitSeq(member.Tag.Get("c"), "|") {
					alternatives = append(alternatives, "offsetof("+structure+", "+m+")")
				}
			}
			for k, expression := range alternatives {
				entries = append(entries, entry{fmt.Sprintf("%s|%d", name, k), expression})
			}
		}
		f(s.Name, s.Tag.Get("src"), entries)
	}
}

// name adds a name to a table.
func (r *result) name(table string, value int, text string) {
	if r.names[table] == nil {
		r.names[table] = make(map[int]string)
	}
	if r.names[table][value] == "" {
		r.names[table][value] = text
	}
}

// addKnown adds the values of a file, and compares them with the compiled ones.
func (r *result) addKnown(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	valid := make(map[string]bool)
	structures(func(_, _ string, entries []entry) {
		for _, e := range entries {
			name, _, _ := strings.Cut(e.name, "|")
			valid[name] = true
		}
	})
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if comment, ok := strings.CutPrefix(line, "# source: "); ok {
			r.source = append(r.source, comment)
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(line, " ")
		if table, number, ok := strings.Cut(name, "="); ok {
			n, err := strconv.Atoi(number)
			if err != nil {
				return fmt.Errorf("%s:%d: %w", file, i+1, err)
			}
			if r.names[table] == nil {
				r.names[table] = make(map[int]string)
			}
			r.names[table][n] = value // the headers do not have the names of SQL
			continue
		}
		n, err := strconv.ParseInt(value, 10, 31)
		if err != nil || !valid[name] {
			return fmt.Errorf("%s:%d: %q is no known value", file, i+1, line)
		}
		if compiled, ok := r.values[name]; ok && compiled != n {
			return fmt.Errorf("%s:%d: %s is %d, but the compiler says %d", file, i+1, name, n, compiled)
		}
		r.values[name] = n
	}
	return nil
}

// text returns the file of Go.
func (r *result) text(major int) ([]byte, error) {
	var b bytes.Buffer
	source := strings.Join(r.source, ", ")
	fmt.Fprintf(&b, "// Code generated by tools/layoutgen; DO NOT EDIT.\n// From: %s.\n\npackage layout\n\n", source)
	fmt.Fprintf(&b, "//nolint:gochecknoglobals // a table\nvar pg%d = Layout{Major: %d, Source: %q}\n\n", major, major, source)
	fmt.Fprintf(&b, "func init() { //nolint:gochecknoinits,funlen // a table\nl := &pg%d\n", major)
	structures(func(_, _ string, entries []entry) {
		for i, e := range entries {
			name, _, _ := strings.Cut(e.name, "|")
			if i > 0 && strings.HasPrefix(entries[i-1].name, name+"|") {
				continue // an alternative
			}
			if value, ok := r.values[name]; ok {
				fmt.Fprintf(&b, "l.%s = At(%d)\n", name, value)
			}
		}
	})
	tables := make([]string, 0, len(r.names))
	for table := range r.names {
		tables = append(tables, table)
	}
	slices.Sort(tables)
	for _, table := range tables {
		names := make([]string, 0)
		for value := range r.names[table] {
			for value >= len(names) {
				names = append(names, "")
			}
		}
		for value, name := range r.names[table] {
			names[value] = strings.TrimPrefix(name, "-")
		}
		fmt.Fprintf(&b, "l.%s = []string{\n", table)
		for _, name := range names {
			fmt.Fprintf(&b, "%q,\n", name)
		}
		b.WriteString("}\n")
	}
	b.WriteString("}\n")
	return format.Source(b.Bytes())
}

// macro returns the text of a macro of a header.
func macro(file, name string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "#define "+name+" "); ok {
			return strings.Trim(strings.TrimSpace(value), `"`), nil
		}
	}
	return "", fmt.Errorf("%s does not define %s", file, name)
}

// packageVersion returns the version of a source tree.
func packageVersion(tree string) (string, error) {
	text, err := os.ReadFile(filepath.Join(tree, "configure"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "PACKAGE_VERSION='"); ok {
			return strings.TrimSuffix(strings.TrimSpace(value), "'"), nil
		}
	}
	return "", fmt.Errorf("%s has no PACKAGE_VERSION", tree)
}
