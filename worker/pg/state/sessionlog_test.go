package state

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestSessionLogKeepsText expects one bounded text for each query, and no more texts than there is room for.
func TestSessionLogKeepsText(t *testing.T) {
	l := NewSessionLog(nil, 0)
	l.add(0, "no id")
	l.add(1, "")
	l.add(1, "first")
	l.add(1, "second")
	l.add(2, strings.Repeat("\u00e4", maxLoggedText))
	if texts := l.Texts(); len(texts) != 2 || texts[1] != "first" || len(texts[2]) > maxLoggedText+3 || !utf8.ValidString(texts[2]) {
		t.Errorf("%.100v", texts)
	}
	for id := range int64(2 * maxLoggedQueries) {
		l.add(id, "text")
	}
	if n := len(l.Texts()); n != maxLoggedQueries {
		t.Errorf("%d texts", n)
	}
}

// TestSessionNamesIs selects by name and by oid.
func TestSessionNamesIs(t *testing.T) {
	for _, c := range []struct {
		n                SessionNames
		users, databases []string
		want             bool
	}{
		{SessionNames{}, nil, nil, true},
		{SessionNames{}, []string{""}, nil, false},
		{SessionNames{}, []string{"0"}, nil, false},
		{SessionNames{User: "a", UserOID: 10, Database: "b", DatabaseOID: 5}, []string{"x", "a"}, []string{"5"}, true},
		{SessionNames{User: "a", UserOID: 10, Database: "b", DatabaseOID: 5}, []string{"a"}, []string{"a"}, false},
		{SessionNames{UserOID: 10}, []string{""}, nil, false},
		{SessionNames{UserOID: 10}, []string{"10"}, nil, true},
	} {
		if got := c.n.Is(c.users, c.databases); got != c.want {
			t.Errorf("%+v of %q and %q: %v", c.n, c.users, c.databases, got)
		}
	}
}

// TestSessionLogAmbiguous: if two processes have had the same process id, the log returns no names for this id, also
// after later reads.
func TestSessionLogAmbiguous(t *testing.T) {
	l := NewSessionLog(nil, 0)
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	l.note(1, &first, "client backend", SessionNames{User: "a", Database: "d", UserOID: 10})
	l.note(1, &first, "client backend", SessionNames{User: "a", Database: "d", UserOID: 10})
	if s, ok := l.Session(1); !ok || s.User != "a" || l.BackendType(1) != "client backend" {
		t.Errorf("%+v, %t, %s", s, ok, l.BackendType(1))
	}
	for range 2 {
		l.note(1, &second, "walsender", SessionNames{User: "b", Database: "d", UserOID: 11})
		if s, ok := l.Session(1); ok || l.BackendType(1) != "" {
			t.Errorf("%+v, %s", s, l.BackendType(1))
		}
	}
}
