package moment

import (
	_ "embed" // phrases.txt
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed phrases.txt
var tableText string

type phraseKind int

const (
	kindActivity phraseKind = iota
	kindStep
	kindGeneric
)

func (k phraseKind) String() string { return [...]string{"", "step", "generic"}[k] }

// A table is the compiled form of phrases.txt.
type table struct {
	entries  []*entry
	ids      map[string]int32
	anchored [][]*pattern // by the number of a name: patterns whose last element has it, best first
}

type entry struct {
	key          string
	kind         phraseKind
	order        int
	patterns     []*pattern
	waits        []wait
	types        []string
	first, last  int // major versions; 0: no limit
	says         []text
	advice, page string
	seen         []string
}

// A pattern is one alternative of an entry.
type pattern struct {
	entry    *entry
	elements []element // outermost first
	below    int       // the most frames inwards of the last element; -1: any number
}

type element struct {
	names   []int32 // sorted
	gap     int     // the most frames between the element before and this one; -1: any number
	without []int32 // names that no frame further inwards has
}

func (e *element) has(id int32) bool {
	_, ok := slices.BinarySearch(e.names, id)
	return ok
}

type wait struct{ kind, event string } // "" and "": no wait; event "*": every event of the kind

// allows reports whether a process meets the entry's conditions, except for those of the stack.
func (e *entry) allows(in *PhraseInput) bool {
	if e.first > 0 && in.Major < e.first || e.last > 0 && (in.Major == 0 || in.Major > e.last) {
		return false
	}
	if len(e.types) > 0 && !slices.Contains(e.types, in.BackendType) {
		return false
	}
	if len(e.waits) == 0 {
		return true
	}
	for _, w := range e.waits {
		if strings.EqualFold(w.kind, in.WaitType) && (w.event == "*" || strings.EqualFold(w.event, in.WaitEvent)) {
			return true
		}
	}
	return false
}

// A text is a phrase in pieces: constant pieces at even places, names of fields at odd ones.
type text struct {
	source string
	pieces []string
}

// fill returns the text with the values of the fields inserted. It returns false if a value is missing or empty. It
// does not search the values for fields.
func (t *text) fill(fields map[string]string) (string, bool) {
	if len(t.pieces) == 1 {
		return t.pieces[0], true
	}
	var b strings.Builder
	for i, piece := range t.pieces {
		if i%2 == 1 {
			piece = fields[piece]
			if piece == "" {
				return "", false
			}
		}
		b.WriteString(piece)
	}
	return b.String(), true
}

// A parser reads phrases.txt.
type parser struct {
	table *table
	keys  map[string]bool
	entry *entry
}

// parse compiles the text of phrases.txt. An error in a line has its number.
func parse(source string) (*table, error) {
	p := parser{table: &table{ids: map[string]int32{}}, keys: map[string]bool{}}
	for number, line := range strings.Split(source, "\n") {
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	if len(p.table.ids) > maxNames {
		return nil, fmt.Errorf("%d names: at most %d are allowed", len(p.table.ids), maxNames)
	}
	p.table.index()
	return p.table, nil
}

func (p *parser) line(line string) error {
	trimmed := strings.TrimSpace(line)
	switch {
	case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		return nil
	case line == trimmed:
		if err := p.end(); err != nil {
			return err
		}
		if p.keys[line] || strings.ContainsAny(line, " :") {
			return fmt.Errorf("key %q: not a word, or not the first of its name", line)
		}
		p.keys[line] = true
		p.entry = &entry{key: line, order: len(p.table.entries)}
		p.table.entries = append(p.table.entries, p.entry)
		return nil
	case p.entry == nil:
		return errors.New("an attribute before the first key")
	}
	name, value, ok := strings.Cut(trimmed, ": ")
	if !ok {
		return fmt.Errorf("%q is not an attribute", trimmed)
	}
	return p.attribute(name, strings.TrimSpace(value))
}

// end verifies that the entry that ends here has all attributes that it needs.
func (p *parser) end() error {
	e := p.entry
	switch {
	case e == nil:
		return nil
	case len(e.patterns) == 0 || len(e.says) == 0 || e.advice == "" || e.page == "":
		return fmt.Errorf("entry %s: stack, says, advice and page are needed", e.key)
	case len(e.says[len(e.says)-1].pieces) != 1:
		return fmt.Errorf("entry %s: the last text has fields", e.key)
	}
	return nil
}

func (p *parser) attribute(name, value string) (err error) {
	e := p.entry
	switch name {
	case "stack":
		var c *pattern
		c, err = p.pattern(value)
		e.patterns = append(e.patterns, c)
	case "wait":
		e.waits, err = parseWaits(value)
	case "type":
		e.types = list(value)
	case "version":
		e.first, e.last, err = parseRange(value)
	case "says":
		var t text
		t, err = parseText(value)
		e.says = append(e.says, t)
	case "advice":
		e.advice = value
	case "page":
		e.page = value
	case "seen":
		e.seen = list(value)
	case "kind":
		e.kind, err = parseKind(value)
	default:
		err = fmt.Errorf("attribute %q is unknown", name)
	}
	return err
}

func list(value string) []string {
	words := strings.Split(value, ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	return words
}

func parseKind(value string) (phraseKind, error) {
	switch value {
	case "step":
		return kindStep, nil
	case "generic":
		return kindGeneric, nil
	}
	return 0, fmt.Errorf("kind %q is unknown", value)
}

func parseWaits(value string) (waits []wait, err error) {
	for _, word := range list(value) {
		if word == "none" {
			waits = append(waits, wait{})
			continue
		}
		kind, event, ok := strings.Cut(word, "/")
		if !ok {
			return nil, fmt.Errorf("wait %q is not TYPE/EVENT", word)
		}
		waits = append(waits, wait{kind, event})
	}
	return waits, nil
}

func parseRange(value string) (first, last int, err error) {
	from, to, ok := strings.Cut(value, "-")
	if !ok {
		to = from
	}
	if from != "" {
		if first, err = strconv.Atoi(from); err != nil {
			return 0, 0, fmt.Errorf("version %q: %w", value, err)
		}
	}
	if to != "" {
		if last, err = strconv.Atoi(to); err != nil {
			return 0, 0, fmt.Errorf("version %q: %w", value, err)
		}
	}
	return first, last, nil
}

func parseText(value string) (text, error) {
	t := text{source: value}
	rest := value
	for {
		before, after, ok := strings.Cut(rest, "{")
		t.pieces = append(t.pieces, before)
		if !ok {
			return t, nil
		}
		var name string
		if name, rest, ok = strings.Cut(after, "}"); !ok || !slices.Contains(PhraseFields(), name) {
			return t, fmt.Errorf("text %q: field %q is unknown", value, name)
		}
		t.pieces = append(t.pieces, name)
	}
}

// pattern parses the value of an attribute stack.
func (p *parser) pattern(value string) (*pattern, error) {
	c := &pattern{entry: p.entry, below: -1}
	gap := -1
	for word := range strings.FieldsSeq(value) {
		last := len(c.elements) - 1
		var err error
		switch {
		case c.below >= 0:
			err = errors.New("a word after $")
		case word == "..":
			gap = -1
		case word[0] == '>':
			gap, err = number(word[1:])
		case word[0] == '$':
			c.below, err = number(word[1:])
		case word[0] == '!' && last >= 0:
			c.elements[last].without = append(c.elements[last].without, p.names(word[1:])...)
		default:
			c.elements = append(c.elements, element{names: p.names(word), gap: gap})
			gap = -1
		}
		if err != nil {
			return nil, fmt.Errorf("pattern %q, word %q: %w", value, word, err)
		}
	}
	if len(c.elements) == 0 {
		return nil, fmt.Errorf("pattern %q has no name", value)
	}
	return c, nil
}

func number(digits string) (int, error) {
	if digits == "" {
		return 0, nil
	}
	return strconv.Atoi(digits)
}

// names returns the numbers of the alternative names in a word of a pattern ("a|b"), sorted. A new name gets the next
// number.
func (p *parser) names(word string) (ids []int32) {
	for name := range strings.SplitSeq(word, "|") {
		id, ok := p.table.ids[name]
		if !ok {
			id = int32(len(p.table.ids)) // at most maxNames, so it fits
			p.table.ids[name] = id
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// conditions returns the weight of the conditions that a stack must meet for this pattern. Of two entries, the one with
// the larger weight is better.
func (c *pattern) conditions() int {
	n := 2 * len(c.elements)
	for _, e := range c.elements {
		n += min(len(e.without), 1) + min(e.gap+1, 1)
	}
	if c.below >= 0 {
		n++
	}
	for _, has := range []bool{len(c.entry.waits) > 0, len(c.entry.types) > 0, c.entry.first+c.entry.last > 0} {
		if has {
			n++
		}
	}
	return n
}

// index sorts the patterns by the name of their last element, best first: patterns of generic entries come last, and patterns
// with more conditions come before others.
func (t *table) index() {
	t.anchored = make([][]*pattern, len(t.ids))
	for _, e := range t.entries {
		for _, c := range e.patterns {
			for _, id := range c.elements[len(c.elements)-1].names {
				t.anchored[id] = append(t.anchored[id], c)
			}
		}
	}
	for _, patterns := range t.anchored {
		slices.SortStableFunc(patterns, func(a, b *pattern) int {
			if ga, gb := a.entry.kind == kindGeneric, b.entry.kind == kindGeneric; ga != gb {
				if ga {
					return 1
				}
				return -1
			}
			return b.conditions() - a.conditions()
		})
	}
}
