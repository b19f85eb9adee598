package table

import (
	"errors"
	"strings"
	"testing"
)

// TestTable prints cells that would break a line, a column or a terminal.
func TestTable(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"pid", "query", "note"}, {"1", "a\tb\nc", "\x1b[31m"}, {"22", "", ""}, {"333", `say "ä, ö"`, "x"}}
	var text, comma strings.Builder
	people, csv := Text(&text, Options{Indent: "> ", Empty: "-"}), CSV(&comma)
	for _, row := range rows {
		people.Row(row...)
		csv.Row(row...)
	}
	if err := errors.Join(people.Flush(), csv.Flush()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ got, want string }{
		{text.String(), "> pid  query       note\n> 1    a b c       ?[31m\n> 22   -           \n> 333  say \"ä, ö\"  x\n"},
		{comma.String(), "pid,query,note\n1,a b c,?[31m\n22,,\n333,\"say \"\"ä, ö\"\"\",x\n"},
	} {
		if c.got != c.want {
			t.Errorf("got\n%swant\n%s", c.got, c.want)
		}
	}
	if got := Cut("äöü\nabc", 5); got != "äöü a..." {
		t.Errorf("cut: %q", got)
	}
	if got := Cut("äöü", 3); got != "äöü" {
		t.Errorf("not cut: %q", got)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// TestTableError: an error of the output comes from Flush.
func TestTableError(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]*Writer{"text": Text(full{}, Options{}), "csv": CSV(full{})} {
		w.Row("a")
		if err := w.Flush(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
