package incident

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/visible"
)

//go:embed page.html
var pageText string

// pageTemplate escapes every value for its place. The page has no script and loads nothing.
//
//nolint:gochecknoglobals // parsed once
var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"line": line, "at": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") },
	"clock": func(t time.Time) string { return t.UTC().Format("15:04:05.0") }, "name": name, "wait": waitOf, "age": age,
	"megabytes": func(n int64) string { return strconv.FormatInt(n>>20, 10) }, "node": func(v *pageView, n *Node) nodeView { return v.node(n) },
}).Parse(pageText))

// line makes one line of a foreign text, without characters that do not show as themselves.
func line(text string) string { return visible.Line(strings.Join(strings.Fields(text), " ")) }

// name returns a name, or the oid if there is none.
func name(text string, oid uint32) string {
	if text == "" && oid != 0 {
		return "oid " + strconv.FormatUint(uint64(oid), 10)
	}
	return cmp.Or(line(text), "-")
}

func waitOf(s Session) string {
	if s.WaitType == "" {
		return ""
	}
	return line(s.WaitType + ":" + s.WaitEvent)
}

// age returns the time between two times; empty: not known.
func age(now time.Time, since *time.Time) string {
	if since == nil {
		return ""
	}
	return strconv.FormatFloat(max(0, now.Sub(*since).Seconds()), 'f', 1, 64) + " s"
}

// pageView is what the template gets.
type pageView struct {
	I     *Incident
	Bars  []bar
	Keys  []colorKey
	Width int
	Most  int

	sessions map[int32]*Session
}

type nodeView struct {
	V *pageView
	N *Node
	S *Session
}

func (v *pageView) node(n *Node) nodeView { return nodeView{v, n, v.sessions[n.PID]} }

type bar struct {
	X, Y, H string
	Color   string
}

type colorKey struct{ Name, Color string }

// colors are those of the classes of wait events, in the order of the stack of bars.
//
//nolint:gochecknoglobals // a table
var colors = []colorKey{
	{"running", "#3a3"}, {"IO", "#36c"}, {"Lock", "#c33"}, {"LWLock", "#e80"}, {"BufferPin", "#a0a"}, {"Buffer", "#a0a"}, {"IPC", "#0aa"},
	{"Client", "#999"}, {"other", "#666"},
}

// Page returns the incident as an HTML page that is complete in itself.
func Page(i *Incident) ([]byte, error) {
	v := &pageView{I: i, sessions: map[int32]*Session{}}
	for j := range i.Sessions {
		v.sessions[i.Sessions[j].PID] = &i.Sessions[j]
	}
	v.draw()
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("incident: %w", err)
	}
	return b.Bytes(), nil
}

// draw makes a bar for each second and class.
func (v *pageView) draw() {
	const most = 1000 // seconds
	list := v.I.History.Seconds
	list = list[max(0, len(list)-most):]
	if len(list) == 0 {
		return
	}
	first := list[0].Time
	for _, s := range list {
		sum := 0
		for _, n := range s.Counts {
			sum += max(0, n)
		}
		v.Most = max(v.Most, sum)
	}
	used := map[string]bool{}
	for _, s := range list {
		x := int(s.Time.Sub(first) / time.Second)
		if x < 0 || x >= most {
			continue // the clock was set
		}
		v.Width = max(v.Width, x+1)
		counts := map[string]int{}
		for class, n := range s.Counts {
			if !slices.ContainsFunc(colors, func(k colorKey) bool { return k.Name == class }) {
				class = "other"
			}
			counts[class] += max(0, n)
		}
		const whole = 100.0
		y := whole
		for _, k := range colors {
			if n := counts[k.Name]; n > 0 {
				h := whole * float64(n) / float64(v.Most)
				y -= h
				used[k.Name] = true
				v.Bars = append(v.Bars, bar{strconv.Itoa(x), strconv.FormatFloat(y, 'f', 1, 64), strconv.FormatFloat(h, 'f', 1, 64), k.Color})
			}
		}
	}
	for _, k := range colors {
		if used[k.Name] {
			v.Keys = append(v.Keys, k)
		}
	}
}
