package profilefmt

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// page has the parts of the page without the data of a profile.
//
//go:embed page
var page embed.FS

// scripts are the names of the page's scripts, in the order in which the browser runs them.
var scripts = []string{
	"model", "units", "tree", "sums", "graph", "state", "address", "compute", "frames", "controls", "tables", "start",
}

// maxLabelValues is the greatest number of different values of a label in a page. A label with more values, such as a
// time stamp, is left out, and the page has a note about it.
const maxLabelValues = 10_000

// labelOrder has the labels of this project in the order in which the page shows them. Other labels come after these.
var labelOrder = []string{
	"database", "user", "application_name", "backend_type", "query_id", "state", "wait_event_type", "wait_event", "pid",
}

// pageData is the data for the page's scripts. The numbers in the long lists are indexes of strings, functions, modules, frames,
// label sets or nodes, except in Parents and Values.
type pageData struct {
	Title    string      `json:"title"`
	Subtitle string      `json:"subtitle"`
	Noun     string      `json:"noun"` // for a frame
	Notes    []string    `json:"notes"`
	Time     int64       `json:"time"`     // ns since 1970; 0: not known
	Duration int64       `json:"duration"` // ns; 0: not known
	Types    [][2]string `json:"types"`    // type and unit
	Type     int         `json:"type"`     // index of the type to show first
	Root     []string    `json:"root"`     // labels to group by at first
	Keys     []string    `json:"keys"`     // names of the labels

	// The lists that may be long. The method write defines their names in JSON.
	Strings []string  `json:"-"`
	Modules []int     `json:"-"` // for each module: name, path and build-id
	Funcs   []int     `json:"-"` // for each function: name, file, module and merged function
	Parents []int     `json:"-"` // for each node: its index less the index of its parent
	Frames  []int32   `json:"-"` // for each node: its frame
	Sets    []int     `json:"-"` // for each label set: a string for each key, 0 for a missing label
	Nodes   []int     `json:"-"` // for each sample: the node of its innermost frame
	Labels  []int     `json:"-"` // for each sample: its label set
	Values  [][]int64 `json:"-"` // for each type: the value of each sample
}

// GraphScript returns the script of the flame graph for another page. The script defines the object flameGraph, which has the class
// Graph of graph.js.
func GraphScript() string {
	return "const flameGraph = (() => {\n\"use strict\";\n" + part("units.js") + part("graph.js") + "return { Graph };\n})();\n"
}

// writeHTML prints a page that contains its data, scripts and styles. The page loads no other files.
func writeHTML(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	data, err := newPageData(p, index, o)
	if err != nil {
		return err
	}
	timeline, err := writeTimeline(o.Timeline)
	if err != nil {
		return err
	}
	var script strings.Builder
	for _, name := range scripts {
		script.WriteString(part(name + ".js"))
	}
	style := part("page.css")
	fill := strings.NewReplacer(
		"{{script-hash}}", hash(script.String()),
		"{{style-hash}}", hash(style),
		"{{timeline}}", timeline,
		"{{title}}", html.EscapeString(data.Title),
		"{{style}}", style,
		"{{script}}", script.String(),
	)
	before, after, _ := strings.Cut(part("page.html"), "{{data}}")
	_, _ = fill.WriteString(w, before) // the writer keeps an error until Flush
	if err := data.write(w); err != nil {
		return err
	}
	_, err = fill.WriteString(w, after)
	return err
}

// write writes the data in JSON. It encodes the lists in pieces, to save memory. The encoder escapes <, >, & and U+2028, so that no
// data can end the script element.
func (d *pageData) write(w *bufio.Writer) error {
	head, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, _ = w.Write(head[:len(head)-1]) // the writer keeps an error until Flush
	lists := []struct {
		name  string
		write func() error
	}{
		{"strings", func() error { return writeList(w, d.Strings) }},
		{"modules", func() error { return writeList(w, d.Modules) }},
		{"functions", func() error { return writeList(w, d.Funcs) }},
		{"parents", func() error { return writeList(w, d.Parents) }},
		{"frames", func() error { return writeList(w, d.Frames) }},
		{"sets", func() error { return writeList(w, d.Sets) }},
		{"nodes", func() error { return writeList(w, d.Nodes) }},
		{"labels", func() error { return writeList(w, d.Labels) }},
		{"values", func() error { return writeLists(w, d.Values) }},
	}
	for _, list := range lists {
		_, _ = w.WriteString(`,"` + list.name + `":`)
		if err := list.write(); err != nil {
			return err
		}
	}
	return w.WriteByte('}')
}

// writeList writes a list in JSON. It stops at the first error of the writer.
func writeList[T any](w *bufio.Writer, list []T) error {
	const piece = 4096
	_ = w.WriteByte('[') // the writer keeps an error until Flush
	for at := 0; at < len(list); at += piece {
		encoded, err := json.Marshal(list[at:min(at+piece, len(list))])
		if err != nil {
			return err
		}
		if at > 0 {
			_ = w.WriteByte(',')
		}
		if _, err := w.Write(encoded[1 : len(encoded)-1]); err != nil {
			return err
		}
	}
	return w.WriteByte(']')
}

func writeLists[T any](w *bufio.Writer, lists [][]T) error {
	_ = w.WriteByte('[') // the writer keeps an error until Flush
	for i, list := range lists {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		if err := writeList(w, list); err != nil {
			return err
		}
	}
	return w.WriteByte(']')
}

// part returns the content of an embedded file of the page.
func part(name string) string {
	text, err := page.ReadFile("page/" + name)
	if err != nil {
		panic(err) // the file is embedded
	}
	return string(text)
}

// hash returns the hash of a script or a style as in the page's Content-Security-Policy, which permits no other script and style.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func newPageData(p *profile.Profile, index int, o Options) (*pageData, error) {
	d := &pageData{
		Title: shown(o.Title), Subtitle: shown(o.Subtitle), Noun: shown(cmp.Or(o.Noun, "function")),
		Notes: []string{}, Root: []string{},
		Time: p.TimeNanos, Duration: p.DurationNanos, Type: index, Modules: []int{}, Funcs: []int{},
	}
	for _, note := range o.Notes {
		if err := o.Memory.Charge(int64(4*min(len(note), maxName))+textBytes, "notes"); err != nil {
			return nil, err
		}
		d.Notes = append(d.Notes, shown(note))
	}
	for _, t := range p.SampleType {
		d.Types = append(d.Types, [2]string{shown(t.Type), shown(t.Unit)})
	}
	text := newStrings()
	labels := newLabelSets(p, text, o.Memory)
	if labels.names.err != nil {
		return nil, labels.names.err
	}
	d.Keys, d.Notes = labels.shownKeys(), append(d.Notes, labels.notes...)
	for _, label := range o.Root {
		switch {
		case slices.Contains(labels.keys, label):
			d.Root = append(d.Root, shown(label))
		case o.Strict:
			return nil, fmt.Errorf("the page cannot group by label %q: %s", label, strings.Join(labels.notes, ", "))
		}
	}
	t := newTable(o.Memory)
	list, err := t.sum(p, labels.number)
	if err != nil {
		return nil, err
	}
	if labels.names.err != nil {
		return nil, labels.names.err
	}
	tr, nodes, err := newTree(list, o.Memory)
	if err != nil {
		return nil, err
	}
	d.Nodes, d.Frames, d.Sets = nodes, tr.frames, labels.sets
	d.Parents = make([]int, len(tr.parents))
	for i, parent := range tr.parents {
		d.Parents[i] = i - parent
	}
	size := int64(8*len(list)*(1+len(p.SampleType)) + 2*textBytes*(len(t.modules)+len(t.functions)))
	if err := o.Memory.Charge(size, "the page"); err != nil {
		return nil, err
	}
	d.Labels = make([]int, len(list))
	d.Values = make([][]int64, len(p.SampleType))
	for i := range d.Values {
		d.Values[i] = make([]int64, len(list))
		for j := range list {
			d.Values[i][j] = list[j].values[i]
		}
	}
	for i := range list {
		d.Labels[i] = list[i].labels
	}
	for _, m := range t.modules {
		d.Modules = append(d.Modules, text.number(m.name), text.number(m.path), text.number(m.buildID))
	}
	for _, f := range t.functions {
		d.Funcs = append(d.Funcs, text.number(f.name), text.number(f.file), f.module, f.merged)
	}
	d.Strings = text.list
	return d, nil
}

// stringTable numbers different texts. Number 0 is the empty text.
type stringTable struct {
	list   []string
	byText map[string]int
}

func newStrings() *stringTable {
	return &stringTable{list: []string{""}, byText: map[string]int{"": 0}}
}

func (t *stringTable) number(text string) int {
	i, ok := t.byText[text]
	if !ok {
		i = len(t.list)
		t.list = append(t.list, text)
		t.byText[text] = i
	}
	return i
}
