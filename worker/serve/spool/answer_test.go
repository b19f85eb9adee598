package spool

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pg_stat_backtrace/worker/limits"
)

func TestEncode(t *testing.T) {
	for name, c := range map[string]struct {
		answer   Answer
		encoding string
		want     string
	}{
		"result":          {Answer{Text: "#0 é\n#1\t€"}, "UTF8", "\x1f\x1f\x1f\x1f\x1f#0 é\n#1\t€"},
		"result in ASCII": {Answer{Text: "é€😀"}, "LATIN1", "\x1f\x1f\x1f\x1f\x1f" + `\u00e9\u20ac\U0001f600`},
		"other fields of a result": {
			Answer{SQLState: "42501", Message: "m", Hint: "h", Text: "t"}, "UTF8", "\x1f\x1f\x1f\x1f\x1ft",
		},
		"error": {
			Answer{Level: "ERROR", SQLState: "42501", Message: "m", Detail: "d", Hint: "h"}, "UTF8",
			"ERROR\x1f42501\x1fm\x1fd\x1fh\x1f",
		},
		"controls": {Answer{Text: "\x00\x1f\x7f\r\u0085"}, "UTF8", "\x1f\x1f\x1f\x1f\x1f" + `\x00\x1f\x7f\x0d\u0085`},
		"turned text": {
			Answer{Text: "a\u202e\u2067b\u2028"}, "UTF8", "\x1f\x1f\x1f\x1f\x1f" + `a\u202e\u2067b\u2028`,
		},
		"no UTF-8": {Answer{Text: "a\xff\xc3"}, "UTF8", "\x1f\x1f\x1f\x1f\x1f" + `a\xff\xc3`},
		"a table": {
			Answer{Rows: [][]string{{"1", "", "é"}, {"a\nb", "\x1d\x1e", ""}}}, "LATIN1",
			"\x1f\x1f\x1f\x1f\x1f1\x1d\x1d" + `\u00e9` + "\x1ea\nb\x1d" + `\x1d\x1e` + "\x1d",
		},
		"a table of nothing": {Answer{Rows: [][]string{}}, "UTF8", "\x1f\x1f\x1f\x1f\x1f"},
		"a level that SQL does not know": {
			Answer{Level: "PANIC", SQLState: "42501", Message: "m"}, "UTF8",
			"ERROR\x1fXX000\x1funexpected answer \"PANIC\" \"42501\": m\x1f\x1f\x1f",
		},
		"a code that SQL cannot raise": {
			Answer{Level: "ERROR", SQLState: "0000", Message: "m", Hint: "h"}, "UTF8",
			"ERROR\x1fXX000\x1funexpected answer \"ERROR\" \"0000\": m\x1f\x1fh\x1f",
		},
	} {
		if got := string(c.answer.encode(c.encoding)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if n := len((Answer{Text: c.answer.Text}).encode(c.encoding)) - separators; n != Size(c.answer.Text, c.encoding) {
			t.Errorf("%s: the size is %d, want %d", name, Size(c.answer.Text, c.encoding), n)
		}
	}
}

func TestEncodeTooLarge(t *testing.T) {
	half := strings.Repeat("x", limits.MaxAnswer/2)
	for _, a := range []Answer{
		{Text: half + half + "x"},
		{Rows: [][]string{{half}, {half}}},
		{Text: strings.Repeat("\x01", limits.MaxAnswer/4+1)},
		{Rows: [][]string{{strings.Repeat("\u202e", limits.MaxAnswer/6+1)}}},
	} {
		if got := string(a.encode("UTF8")); !strings.HasPrefix(got, "ERROR\x1f54000\x1f") {
			t.Errorf("%.80q", got)
		}
	}
	if got := (Answer{Text: half + half}).encode("LATIN1"); len(got) != limits.MaxAnswer+separators {
		t.Errorf("the largest answer became %.80q", got)
	}
}

// FuzzEncode holds what SQL relies on: six fields, and a text that the database takes.
func FuzzEncode(f *testing.F) {
	f.Add("", "", "m", "d", "h", "text é", "UTF8")
	f.Add("ERROR", "XX000", "\x1f", "\x00", "\xff", "", "EUC_JP")
	f.Fuzz(func(t *testing.T, level, state, message, detail, hint, text, encoding string) {
		got := string(Answer{
			Level: level, SQLState: state, Message: message, Detail: detail, Hint: hint, Text: text,
		}.encode(encoding))
		fields := strings.Split(got, separator)
		switch {
		case fields[0] == "" && len(fields[len(fields)-1]) != Size(text, encoding):
			t.Fatalf("the size of the text is %d: %q", Size(text, encoding), got)
		case len(fields) != 6:
			t.Fatalf("%d fields: %q", len(fields), got)
		case fields[0] != "" && (fields[0] != "WARNING" && fields[0] != "ERROR" || len(fields[1]) != 5 || fields[2] == ""):
			t.Fatalf("cannot be raised: %q", got)
		case !utf8.ValidString(got), strings.ContainsRune(got, 0):
			t.Fatalf("no text: %q", got)
		case encoding != "UTF8" && strings.IndexFunc(got, func(r rune) bool { return r > 0x7e }) >= 0:
			t.Fatalf("not ASCII: %q", got)
		}
	})
}
