package moment

import (
	"regexp"
	"strings"
)

// LockWords describes a lock and its object in words: "row (0,1) of stock", or "row (0,1) of relation 16384" if the name of
// the relation is not known. database is the oid of the database, if the words have the number of a relation; else empty.
// Other locks are described by their type and their numbers.
func LockWords(lock, object, relation string) (words, database string) {
	if object == "" {
		return lock, ""
	}
	switch lock {
	case "relation", "tuple", "page", "extend":
	case "advisory":
		return advisory(object), ""
	default:
		return lock + " " + object, ""
	}
	database, rest, ok := strings.Cut(object, "/")
	if !ok || strings.Trim(database, "0123456789") != "" { // words of a recorder: see ObjectOf
		return object, ""
	}
	number, place, _ := strings.Cut(rest, " ")
	name := relation
	if name == "" {
		name = "relation " + number
	} else {
		database = ""
	}
	switch lock {
	case "tuple":
		return "row " + place + " of " + name, database
	case "page":
		return place + " of " + name, database
	case "extend":
		return "extension of " + name, database
	}
	if relation != "" {
		return "relation " + name, database
	}
	return name, database
}

// advisory returns the words for an advisory lock, such as "16386 key 7" or "16386 keys 1, 2". The number in front is
// the database. It is left out, because the sessions show their database.
func advisory(object string) string {
	const lock = "advisory lock "
	if number, key, ok := strings.Cut(object, " key"); ok && strings.Trim(number, "0123456789") == "" {
		if one, ok := strings.CutPrefix(key, " "); ok {
			return lock + one
		}
		return lock + "(" + strings.TrimPrefix(key, "s ") + ")"
	}
	if strings.HasPrefix(object, lock) { // words of a recorder: see ObjectOf
		return object
	}
	return "advisory " + object
}

//nolint:gochecknoglobals // tables
var (
	// recordedRelation matches a relation in the words of a recorder (worker/history/recorder): "stock (relation 7 of
	// database 5)", or "relation 7 of database 5".
	recordedRelation = regexp.MustCompile(`^(?s:(.*) \()?relation (\d+) of database (\d+)(\))?$`)
	// recordedObjects match other objects in the words of a recorder. live is the form of Blocker.Object for them.
	recordedObjects = []struct {
		words *regexp.Regexp
		live  string
	}{
		{regexp.MustCompile(`^transaction (\d+)$`), "$1"},
		{regexp.MustCompile(`^virtual transaction (\d+/\d+)$`), "$1"},
		{regexp.MustCompile(`^speculative token (\d+) of transaction (\d+)$`), "$2 token $1"},
		{regexp.MustCompile(`^frozen ids of database (\d+)$`), "$1"},
		{regexp.MustCompile(`^remote transaction (\d+) of subscription (\d+) of database (\d+)$`), "$3 subscription $2 transaction $1"},
		{regexp.MustCompile(`^advisory lock (-?\d+) of database (\d+)$`), "$2 key $1"},
		{regexp.MustCompile(`^advisory lock \((-?\d+), (-?\d+)\) of database (\d+)$`), "$3 keys $1, $2"},
		{regexp.MustCompile(`^[a-z]+ (\d+) of class (\d+) of database (\d+)$`), "$3 class $2 object $1"},
	}
	recordedPlace = regexp.MustCompile(`^(?s:(?:tuple (\(\d+,\d+\))|(page \d+)|extension) of (.*))$`)
)

// ObjectOf translates the object of a lock from the words of a recorder, such as "tuple (0,1) of stock (relation 7 of database 5)",
// to the form that Blocker.Object and Blocker.Relation have: "5/7 (0,1)" and "stock". It returns other texts unchanged, without a
// relation.
func ObjectOf(words string) (object, relation string) {
	rest, place := words, ""
	// A table can have a name such as "page 1 of x". So these words are a place only if a whole relation follows "of".
	if m := recordedPlace.FindStringSubmatch(words); m != nil && recordedRelation.MatchString(m[3]) {
		rest = m[3]
		if place = m[1] + m[2]; place != "" {
			place = " " + place
		}
	}
	if m := recordedRelation.FindStringSubmatch(rest); m != nil && (m[4] == ")") == strings.HasSuffix(rest, ")") {
		return m[3] + "/" + m[2] + place, m[1]
	}
	for i := range recordedObjects {
		if o := &recordedObjects[i]; o.words.MatchString(words) {
			return o.words.ReplaceAllString(words, o.live), ""
		}
	}
	return words, ""
}

// WithoutName removes the name of a relation from the words of a recorder, such as "tuple (0,1) of stock (relation 7 of
// database 5)". The number of the relation stays.
func WithoutName(object string) string {
	const before = " (relation "
	i := strings.LastIndex(object, before)
	if i < 0 || !strings.HasSuffix(object, ")") {
		return object
	}
	number := object[i+2 : len(object)-1]
	for _, kind := range []string{"tuple (", "page ", "extension"} {
		place, ok := strings.CutPrefix(object[:i], kind)
		if !ok {
			continue
		}
		if place, _, ok = strings.Cut(place, " of "); ok && strings.Trim(place, "0123456789,)") == "" {
			return kind + place + " of " + number
		}
	}
	return number
}
