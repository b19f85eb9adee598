package table

import (
	"slices"
	"strings"
	"testing"
)

// TestFit prints a table for terminals of several widths.
func TestFit(t *testing.T) {
	t.Parallel()
	columns := []Column{{}, {Drop: 1}, {Least: 4, Drop: 2}, {Drop: 3}, {Least: 6}}
	for _, c := range []struct {
		width int
		left  []string
		want  string
	}{
		{80, nil, "id  user          age   query\n1   -             10 s  SELECT 漢字 FROM t WHERE n = 1\n22  abcdefghijkl  1 s   x\n"},
		{30, nil, "id  user      age   query\n1   -         10 s  SELECT 漢…\n22  abcdefg…  1 s   x\n"},
		{22, nil, "id  user  age   query\n1   -     10 s  SELEC…\n22  abc…  1 s   x\n"},
		{20, []string{"age"}, "id  user    query\n1   -       SELECT …\n22  abcde…  x\n"},
		{16, []string{"age"}, "id  user  query\n1   -     SELEC…\n22  abc…  x\n"},
		{10, []string{"age", "user"}, "id  query\n1   SELEC…\n22  x\n"},
		{5, []string{"age", "user"}, "id  …\n1   …\n22  x\n"},
	} {
		var out strings.Builder
		f := Fit(&out, Options{Width: c.width, Empty: "-"}, columns)
		f.Row("id", "empty", "user", "age", "query")
		f.Row("1", "", "", "10 s", "SELECT 漢字\nFROM t WHERE n = 1")
		f.Row("22", "", "abcdefghijkl", "1 s", "x")
		left, err := f.Flush()
		if err != nil || out.String() != c.want || !slices.Equal(left, c.left) {
			t.Errorf("width %d: left %q, %v\n%swant\n%s", c.width, left, err, out.String(), c.want)
		}
	}
	f := Fit(full{}, Options{Width: 80}, columns[:1])
	if _, err := f.Flush(); err != nil {
		t.Error("a table without rows writes something")
	}
	f.Row("id")
	if _, err := f.Flush(); err == nil {
		t.Error("no error of the output")
	}
}

// TestFitForms prints notes, columns that wrap or are aligned at the right, tables without a header and tables of any width.
func TestFitForms(t *testing.T) {
	t.Parallel()
	columns := []Column{{Right: true}, {Least: 3, Drop: 1}, {Least: 5, Wrap: true}}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"any width": {Options{}, "  n  name   meaning\n  1  alpha  says what it is\n  2  -- a note that is longer than the others\n333         a-long-word x\n"},
		"narrow": {Options{Width: 18}, "  n  name   meani…\n  1  alpha  says\n            what\n            it is\n" +
			"  2  -- a note that is longer than the others\n333         a-long\n            -word\n            x\n"},
		"no header": {Options{Width: 40, NoHeader: true, Indent: "> "}, ">   1  alpha  says what it is\n" +
			">   2  -- a note that is longer than the others\n> 333         a-long-word x\n"},
	} {
		var out strings.Builder
		f := Fit(&out, c.o, columns)
		f.Row("n", "name", "meaning")
		f.Row("1", "alpha", "says what it is")
		f.Row("2", "-- a note that is longer than the others")
		f.Row("333", "", "a-long-word x")
		if left, err := f.Flush(); err != nil || out.String() != c.want || len(left) > 0 {
			t.Errorf("%s: left %q, %v\n%swant\n%s", name, left, err, out.String(), c.want)
		}
	}
}
