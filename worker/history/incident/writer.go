package incident

import (
	"html"
	"strings"
)

// markup is HTML from constants of this package. Go converts untyped constants to it, but not strings of other origin.
// TestMarkupIsConstant fails for explicit conversions.
type markup string

// pageWriter writes an HTML page. It has two kinds of text: markup, and values, which it escapes. So a value cannot become
// markup. The package uses no template: the packages text/template and html/template call methods by name, so that the linker would
// keep every method of every type, which is a tenth of the program's size.
type pageWriter struct {
	b strings.Builder
}

// placeholder marks the place of a value in markup. A value may be text, or a quoted value of an attribute that is no style,
// address or script.
const placeholder = "{}"

// put writes markup with a value for each placeholder. It joins the lines of each value, and escapes the value.
func (w *pageWriter) put(form markup, values ...string) {
	rest := string(form)
	for _, value := range values {
		before, after, found := strings.Cut(rest, placeholder)
		if !found {
			break // more values than placeholders: TestMarkupIsConstant finds such calls
		}
		w.b.WriteString(before)
		w.b.WriteString(html.EscapeString(line(value)))
		rest = after
	}
	w.b.WriteString(rest)
}

// raw writes markup without values.
func (w *pageWriter) raw(m markup) { w.b.WriteString(string(m)) }

// optional writes markup with one value. If the value is empty, it writes nothing.
func (w *pageWriter) optional(form markup, value string) {
	if value != "" {
		w.put(form, value)
	}
}
