package store

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// cases have SECRET in each place that must be removed.
var cases = []struct{ in, want string }{
	{"", ""},
	{"SELECT 1", "SELECT ?"},
	{"select  a,\n\tb from t where c = 'SECRET'  ", "select a, b from t where c = ?"},
	{"SELECT 'it''s SECRET', b", "SELECT ?, b"},
	{`SELECT E'it\'s SECRET \\', b`, "SELECT ?, b"},
	{`SELECT e'x\\' || a`, "SELECT ? || a"},
	{"SELECT E'a'\n 'b\\'SECRET', c", "SELECT ?, c"},
	{`SELECT 'it\'s SECRET', b`, "SELECT ?..."},
	{`SELECT 'c:\SECRET', b`, "SELECT ?, b"},
	{`SELECT U&'SECRET', B'10', x'1F', n'SECRET' FROM u`, "SELECT ?, ?, ?, ? FROM u"},
	{`SELECT u&"x" & 'SECRET'`, `SELECT u&"x" & ?`},
	{"SELECT date'SECRET', time 'SECRET'", "SELECT date?, time ?"},
	{"SELECT $$SECRET 'SECRET$$, $a$ $$ SECRET $b$ $a$, $1", "SELECT ?, ?, $1"},
	{"SELECT a$b$c, d", "SELECT a$b$c, d"},
	{"SELECT $q$ SECRET", "SELECT ?"},
	{"SELECT $SECRET", "SELECT ?"},
	{"SELECT 'SECRET", "SELECT ?"},
	{"SELECT -1.5e-10, .5, 0xFF, 1_000, 1..10, 5::text", "SELECT -?, ?, ?, ?, ?, ?::text"},
	{"SELECT t1.c2 FROM t1", "SELECT t1.c2 FROM t1"},
	{"SELECT a--SECRET\n, b /* SECRET /* SECRET */ SECRET */ + c", "SELECT a , b + c"},
	{"/* SECRET */ SELECT a", "SELECT a"},
	{"SELECT a /* SECRET", "SELECT a"},
	{`SELECT "a ""b" FROM "c 'd"`, `SELECT "a ""b" FROM "c 'd"`},
	{`SELECT "SELECT 'x`, `SELECT "SELECT 'x`},
	{"((SELECT 1) UNION VALUES (2))", "((SELECT ?) UNION VALUES (?))"},
	{"ALTER ROLE a PASSWORD 'SECRET'", "ALTER ROLE"},
	{"alter /* x */ user SECRET set x = SECRET", "ALTER USER"},
	{"CREATE OR REPLACE FUNCTION f() RETURNS int AS $$SECRET$$", "CREATE OR REPLACE"},
	{"CREATE UNIQUE INDEX i ON t (a)", "CREATE UNIQUE INDEX"},
	{"CREATE USER TABLE", "CREATE USER"},
	{"SET app.key = SECRET; SELECT 1; COMMIT", "SET; SELECT ?; COMMIT"},
	{"COPY t FROM PROGRAM 'SECRET'", "COPY"},
	{"EXPLAIN SELECT 'SECRET'", "EXPLAIN"},
	{"NOTIFY a, 'SECRET'", "NOTIFY"},
	{"SECRET", "?"},
	{"'SECRET' SELECT", "?"},
	{"SELECT 1;;SECRET", "SELECT ?;; ?"},
	{"; SELECT 1", "; SELECT ?"},
	{"SELECT 'a' ? 'b'", "SELECT ? ? ?"},
	{"SELECT \xff'SECRET'", "SELECT ??"},
	{"select \u00e9\u00e8 from t", "select \u00e9\u00e8 from t"},
}

func TestNormalized(t *testing.T) {
	for _, c := range cases {
		got := Normalized(c.in)
		if got != c.want {
			t.Errorf("%q:\n got %q\nwant %q", c.in, got, c.want)
		}
		if strings.Contains(got, "SECRET") {
			t.Errorf("%q: a value is left in %q", c.in, got)
		}
	}
}

func TestNormalizedIsBounded(t *testing.T) {
	for _, in := range []string{
		"SELECT " + strings.Repeat("a,", 1<<20), strings.Repeat("/*", 1<<20), strings.Repeat("$a", 1<<20),
		strings.Repeat("SET;", 1<<20), "SELECT " + strings.Repeat("$a$b", 1<<20), "SELECT '" + strings.Repeat("x", 1<<20),
		"SELECT " + strings.Repeat("x", 1<<20),
	} {
		if got := Normalized(in); len(got) > maxOutput+len(more) {
			t.Errorf("%.20q gives %d bytes", in, len(got))
		}
	}
}

func FuzzNormalized(f *testing.F) {
	for _, c := range cases {
		f.Add(c.in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := Normalized(in)
		if !utf8.ValidString(got) {
			t.Errorf("%q is not UTF-8", got)
		}
		// No string literal is left, even if the text was cut at any place.
		got = Normalized("SELECT 'SECRET' /* SECRET */ , $a$SECRET$a$ " + in)
		if strings.Contains(got, "SECRET") && !strings.Contains(in, "SECRET") {
			t.Errorf("a value is left in %q", got)
		}
		for n := range min(len(in), 64) {
			Normalized(in[:n])
		}
	})
}
