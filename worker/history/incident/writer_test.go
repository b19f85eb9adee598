package incident

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestValuesAreEscaped has characters that end a text, an attribute, or an escape.
func TestValuesAreEscaped(t *testing.T) {
	t.Parallel()
	var w pageWriter
	w.put(`<a x="{}">{}</a>`, `"'><&lt;{}`, "</a>\x00\u202e\n\xff")
	w.optional("<b>{}</b>", "")
	w.optional("<b>{}</b>", "<")
	const want = `<a x="&#34;&#39;&gt;&lt;&amp;lt;{}">&lt;/a&gt;?? ` + "\ufffd" + `</a><b>&lt;</b>`
	if got := w.b.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// quotedAttributes are attributes in which any text is harmless.
//
//nolint:gochecknoglobals // a table
var quotedAttributes = []string{"viewBox", "x", "y", "height"}

// TestMarkupIsConstant reads the source of the package. Markup consists of literals and of constants of this package,
// and has a placeholder for each value, in a text or in an attribute of the list.
func TestMarkupIsConstant(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	calls, files := 0, token.NewFileSet()
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			at := files.Position(call.Pos())
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				if fun.Name == "markup" {
					t.Errorf("%v: a conversion to markup", at)
				}
			case *ast.SelectorExpr:
				method := fun.Sel.Name
				if x, ok := fun.X.(*ast.Ident); !ok || x.Name != "v" && x.Name != "w" || !slices.Contains([]string{"put", "optional", "raw"}, method) {
					return true
				}
				form, ok := literal(call.Args[0])
				switch {
				case ok:
					calls++
					if got, want := strings.Count(form, placeholder), len(call.Args)-1; got != want || call.Ellipsis.IsValid() {
						t.Errorf("%v: %d placeholders for %d values in %s", at, got, want, form)
					}
					checkPlaces(t, at, form)
				case e.Name() == "writer.go": // calls of optional are checked
				case method == "raw" && isTable(call.Args[0]):
				default:
					t.Errorf("%v: markup is no literal", at)
				}
			}
			return true
		})
	}
	const least = 50
	if calls < least {
		t.Errorf("only %d calls were found", calls)
	}
}

// literal returns the value of a string literal, or of a sum of them.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		x, ok1 := literal(e.X)
		y, ok2 := literal(e.Y)
		return x + y, ok1 && ok2 && e.Op == token.ADD
	}
	return "", false
}

// isTable reports whether an expression is the embedded style or the color of a table of the package.
func isTable(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "pageStyle"
	case *ast.SelectorExpr:
		return e.Sel.Name == "color"
	}
	return false
}

// checkPlaces fails the test if a placeholder is in a tag, but not a whole value of a known attribute.
func checkPlaces(t *testing.T, at token.Position, form string) {
	t.Helper()
	rest := form
	for i := strings.Index(rest, placeholder); i >= 0; i = strings.Index(rest, placeholder) {
		before := form[:len(form)-len(rest)+i]
		rest = rest[i+len(placeholder):]
		start := strings.LastIndexAny(before, "<>")
		if start < 0 || before[start] == '>' {
			continue // a text
		}
		tag := before[start+1:]
		name, open := strings.CutSuffix(tag[strings.LastIndexByte(tag, ' ')+1:], `="`)
		if viewBox := `viewBox="0 0 `; strings.HasSuffix(tag, viewBox) {
			name, open = "viewBox", true
		}
		if !open || !slices.Contains(quotedAttributes, name) {
			t.Errorf("%v: a placeholder in the tag <%s", at, tag)
		}
	}
}
