package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/moment"
)

// Names returns the users and databases of all processes that the log has seen.
func (l *SessionLog) Names() []SessionNames {
	names := make([]SessionNames, 0, len(l.sessions))
	for pid := range l.sessions {
		if n, ok := l.Session(pid); ok {
			names = append(names, n)
		}
	}
	return names
}

// NamesOf returns the users and databases of the processes of a moment.
func NamesOf(m *moment.Moment) []SessionNames {
	names := make([]SessionNames, 0, len(m.Sessions))
	for i := range m.Sessions {
		s := &m.Sessions[i]
		names = append(names, SessionNames{s.User, s.Database, s.UserOID, s.DatabaseOID})
	}
	return names
}

// Unseen returns a sentence for each of the users and databases that no process of seen has. The sentence also names the
// users or databases of seen. A word is a name or an oid.
func Unseen(users, databases []string, seen []SessionNames) (lines []string) {
	var roles, bases []string
	for _, n := range seen {
		roles, bases = append(roles, nameOrOID(n.User, n.UserOID)), append(bases, nameOrOID(n.Database, n.DatabaseOID))
	}
	for _, word := range users {
		if !slices.ContainsFunc(seen, func(n SessionNames) bool { return n.Is([]string{word}, nil) }) {
			lines = append(lines, unseen("session of user", "users", word, roles))
		}
	}
	for _, word := range databases {
		if !slices.ContainsFunc(seen, func(n SessionNames) bool { return n.Is(nil, []string{word}) }) {
			lines = append(lines, unseen("session in database", "databases", word, bases))
		}
	}
	return lines
}

// UnseenTypes returns a sentence for each backend type that no process of a moment has.
func UnseenTypes(types []string, m *moment.Moment) (lines []string) {
	var seen []string
	for i := range m.Sessions {
		seen = append(seen, m.Sessions[i].Type)
	}
	for _, word := range types {
		if !slices.Contains(seen, word) {
			lines = append(lines, unseen("process of type", "types", word, seen))
		}
	}
	return lines
}

// unseen returns the sentence about a word that is not in seen.
func unseen(what, plural, word string, seen []string) string {
	const most = 10
	text := fmt.Sprintf("no %s %q was seen", what, word)
	if i := slices.IndexFunc(seen, func(name string) bool { return strings.EqualFold(name, word) }); i >= 0 {
		return text + fmt.Sprintf("; %q was: upper and lower case differ", seen[i])
	}
	slices.Sort(seen)
	seen = slices.Compact(slices.DeleteFunc(slices.Clone(seen), func(name string) bool { return name == "" }))
	switch {
	case len(seen) == 0:
		return text
	case len(seen) > most:
		return text + fmt.Sprintf("; %s seen: %s and %d more", plural, strings.Join(seen[:most], ", "), len(seen)-most)
	}
	return text + fmt.Sprintf("; %s seen: %s", plural, strings.Join(seen, ", "))
}

func nameOrOID(name string, oid uint32) string {
	if name == "" && oid != 0 {
		return strconv.FormatUint(uint64(oid), 10)
	}
	return name
}
