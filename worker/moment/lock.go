package moment

import "strings"

// LockWords describes a lock and its object in words: "row (0,1) of stock", or "row (0,1) of relation 16384" if the name of
// the relation is not known. Then the oid of the database is returned too. Other locks have their type and their numbers.
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
	if !ok || strings.Trim(database, "0123456789") != "" { // the words of a recorder
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
// the database, which the sessions show.
func advisory(object string) string {
	const lock = "advisory lock "
	if number, key, ok := strings.Cut(object, " key"); ok && strings.Trim(number, "0123456789") == "" {
		if one, ok := strings.CutPrefix(key, " "); ok {
			return lock + one
		}
		return lock + "(" + strings.TrimPrefix(key, "s ") + ")"
	}
	if strings.HasPrefix(object, lock) { // the words of a recorder
		return object
	}
	return "advisory " + object
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
