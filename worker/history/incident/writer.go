package incident

import (
	"html"
	"strings"
)

// markup is HTML that this package has written. Untyped constants convert to it, strings of other origin do not:
// TestMarkupIsConstant finds conversions.
type markup string

// pageWriter writes an HTML page. It knows two kinds of text: constants of the package, and values, which it escapes.
// A value can therefore not become markup, and the page needs no template. The packages text/template and html/template
// call methods by name, so that the linker keeps every method of every type of the program: a tenth of its size.
type pageWriter struct {
	b strings.Builder
}

// placeholder stands for a value in markup: as text, or as a quoted value of an attribute that is no style, address or script.
const placeholder = "{}"

// put writes markup with a value for each placeholder. It makes one line of each value and escapes it.
func (w *pageWriter) put(form markup, values ...string) {
	rest := string(form)
	for _, value := range values {
		before, after, found := strings.Cut(rest, placeholder)
		if !found {
			break // TestMarkupIsConstant finds it
		}
		w.b.WriteString(before)
		w.b.WriteString(html.EscapeString(line(value)))
		rest = after
	}
	w.b.WriteString(rest)
}

// raw writes markup without placeholders.
func (w *pageWriter) raw(m markup) { w.b.WriteString(string(m)) }

// optional writes markup with a value, and nothing if the value is empty.
func (w *pageWriter) optional(form markup, value string) {
	if value != "" {
		w.put(form, value)
	}
}
