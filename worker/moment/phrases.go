package moment

import (
	"slices"
	"strings"
	"sync"
)

// Phrases say in a DBA's words what a process of PostgreSQL does, from the names of the functions on its stack
// and from its wait event.
//
// Finding a phrase is pure: it reads no process, no clock and no file. All phrases are in phrases.txt, which is
// compiled once. A phrase states a fact: if in doubt, there is no phrase. So an entry names every function and every
// wait on which its text depends, and a frame without a name matches nothing.
//
// # The table
//
// An entry begins with its key at the start of a line. Its attributes follow, indented:
//
//		sort-disk
//		  stack: tuplesort_performsort .. dumptuples > LogicalTapeWrite
//		  says: sorts rows of {relation}, on disk
//		  says: sorts rows, on disk
//		  advice: Raise work_mem for this query.
//		  page: runtime-config-resource
//		  seen: sort-disk
//
//	  - stack is a pattern, from the outermost function inwards. Several lines are alternatives. Between two names may be
//	    any number of frames ("a b", or "a .. b"), none ("a > b"), or at most N ("a >N b"). "a|b" is one frame with one of
//	    these names. "!a|b" after a name: none of the frames further inwards has these names, and all of them are named.
//	    "$" at the end: the last name is the innermost frame; "$N": at most N frames are further inwards.
//	  - wait is a list of wait events that the entry needs, as "Lock/transactionid" or "Lock/*"; "none" is a process
//	    without a wait event. Letter case is ignored, because it has changed between versions.
//	  - type is a list of backend types, version a range of major versions, as "14-16" or "17-".
//	  - says is the text, with fields in braces. Of several lines, the first whose fields are all known is used. The last line
//	    has no fields.
//	  - advice is a sentence, page a page of PostgreSQL's manual, without ".html".
//	  - kind is empty, "step" or "generic". A step is a small part of something larger, such as a read of a page: its text
//	    follows the text of the activity further outwards. A generic phrase is true for many stacks. It is used only if no
//	    other entry matches.
//	  - seen lists recorded situations (stacks of a server) that the entry must match. Only the tests read it.
//
// Names are compared without the suffixes that compilers add: ".isra.0", ".constprop.0", ".part.0", ".cold" and the like.
// Calls that a compiler has inlined are missing in the stack of one build and present in another. So a pattern should name
// functions that are too large to be inlined, or that are called from other files, and "a > b" should be rare. On a
// stripped server only functions that other files call have a name.
//
// # The best entry
//
// Of all entries that match, the one whose last name lies furthest inwards is best, since it is closest to what the
// process does now. At the same frame the entry with the most conditions is best, then the entry that comes first in
// the table. Generic entries come last.

// PhraseInput describes a process at one moment.
type PhraseInput struct {
	// Functions are the names on the stack, innermost first. A frame without a name is an empty string.
	Functions []string
	// WaitType and WaitEvent are the wait event in the words of pg_stat_activity; empty if the process does not wait.
	WaitType, WaitEvent string
	// BackendType is in the words of pg_stat_activity. If it is empty, MatchPhrase finds the type by the functions on
	// the stack, if possible.
	BackendType string
	// Major is the major version of the server; 0 if it is not known.
	Major int
	// Fields are the values for a text, by the name of the field, such as "relation". See PhraseFields for the names.
	Fields map[string]string
}

// PhraseFields returns the names of all fields that a text may contain.
func PhraseFields() []string {
	return []string{"relation", "tuple", "index", "holder", "ahead", "xid", "mode", "object", "database", "function", "slot"}
}

// Phrase says what a process does. The zero value means that the table has no phrase for it.
type Phrase struct {
	// Key names the entry. The set of keys is small and stable, so it is fit for a label of metrics.
	Key string
	// Text is a statement without a subject: "waits for the row (0,1) of stock". Values of fields are inserted as they are.
	Text string
	// Within is the key of the activity that the step Key is a part of, empty if there is none.
	Within string
	// Advice is a sentence on what to do, Page a page of PostgreSQL's manual without ".html", such as
	// "explicit-locking".
	Advice, Page string
	// Generic marks a phrase that is true for many stacks, such as "runs a query".
	Generic bool
}

// PhraseEntry is an entry of the table of phrases, with the columns that the documentation shows.
type PhraseEntry struct {
	Key, Kind, Text, Advice, Page string
}

// PhraseEntries returns the table in its order. Text is the first text of the entry, with fields in braces.
func PhraseEntries() []PhraseEntry {
	t := compiled()
	out := make([]PhraseEntry, 0, len(t.entries))
	for _, e := range t.entries {
		out = append(out, PhraseEntry{Key: e.key, Kind: e.kind.String(), Text: e.says[0].source, Advice: e.advice, Page: e.page})
	}
	return out
}

var compiled = sync.OnceValue(func() *table {
	t, err := parse(tableText)
	if err != nil {
		panic("phrases: " + err.Error()) // not reached: a test compiles the table
	}
	return t
})

// MatchPhrase returns the best phrase for a process. It may be called by several goroutines at a time.
func MatchPhrase(in PhraseInput) Phrase { return compiled().match(in) }

// ClientIdle returns the phrase of a session that waits for its client and runs no statement, for readers without its stack.
var ClientIdle = sync.OnceValue(func() Phrase {
	for _, e := range compiled().entries {
		if e.key == "read-command" {
			return e.phrase(nil, nil)
		}
	}
	panic("phrases: no read-command") // not reached: a test calls this function
})

// mains are functions that only processes of one backend type run, with the type in the words of pg_stat_activity.
//
//nolint:gochecknoglobals // a table
var mains = map[string]string{
	"StartupProcessMain": "startup", "CheckpointerMain": "checkpointer", "BackgroundWriterMain": "background writer",
	"WalWriterMain": "walwriter", "WalReceiverMain": "walreceiver", "PgArchiverMain": "archiver", "IoWorkerMain": "io worker",
	"AutoVacLauncherMain": "autovacuum launcher", "AutoVacWorkerMain": "autovacuum worker", "WalSndLoop": "walsender",
}

// typeOfStack returns the type of the process with this stack; empty: the stack has no function of mains.
func typeOfStack(functions []string) string {
	for i := len(functions) - 1; i >= 0; i-- { // the functions of mains are near the outermost frame
		name, _, _ := strings.Cut(functions[i], ".")
		if t := mains[name]; t != "" {
			return t
		}
	}
	return ""
}

// maxFrames bounds the work for one stack: frames further outwards are left out. A server's stack is shorter, except in
// deep recursion.
const maxFrames = 512

func (t *table) match(in PhraseInput) Phrase {
	functions := in.Functions
	if in.BackendType == "" {
		in.BackendType = typeOfStack(functions)
	}
	if len(functions) > maxFrames {
		functions = functions[:maxFrames]
	}
	var room [64]int32
	ids := room[:0]
	for _, name := range functions {
		ids = append(ids, t.identify(name))
	}
	m := matcher{table: t, in: &in, ids: ids}
	m.note()
	var step, generic *entry
	for depth := range ids {
		e := m.bestAt(depth, step != nil)
		switch {
		case e == nil:
		case e.kind == kindStep:
			step = e
		case e.kind == kindGeneric:
			if generic == nil {
				generic = e
			}
		default:
			return e.phrase(step, in.Fields)
		}
	}
	if step != nil {
		return step.phrase(nil, in.Fields)
	}
	if generic != nil {
		return generic.phrase(nil, in.Fields)
	}
	return Phrase{}
}

// phrase returns the Phrase of e, or of step as a part of e if step is not nil.
func (e *entry) phrase(step *entry, fields map[string]string) Phrase {
	if step == nil {
		return Phrase{Key: e.key, Text: e.text(fields), Advice: e.advice, Page: e.page, Generic: e.kind == kindGeneric}
	}
	return Phrase{
		Key: step.key, Within: e.key, Text: e.text(fields) + ": " + step.text(fields), Advice: step.advice, Page: step.page,
	}
}

func (e *entry) text(fields map[string]string) string {
	for _, s := range e.says {
		if text, ok := s.fill(fields); ok {
			return text
		}
	}
	return "" // not reached: the last text has no fields
}

// nameless is a frame without a name, other a frame whose name is not in the table.
const (
	nameless int32 = -1
	other    int32 = -2
)

// identify returns the number of a function's name in the table; nameless or other if it has none.
func (t *table) identify(name string) int32 {
	if name == "" {
		return nameless
	}
	if id, ok := t.ids[name]; ok {
		return id
	}
	// No identifier of C has a dot. "@" begins the version of a symbol, or "@plt".
	if i := strings.IndexAny(name, ".@"); i > 0 {
		if id, ok := t.ids[name[:i]]; ok {
			return id
		}
	}
	return other
}

// maxNames is the largest number of different names in the table.
const maxNames = 2048

// A matcher compares one stack with the table.
type matcher struct {
	table *table
	in    *PhraseInput
	ids   []int32 // innermost first
	// present has a bit for each name of the table; set: the stack has the name. Most patterns have a name that the
	// stack lacks: no search is needed for them.
	present [maxNames / 64]uint64
}

// note sets the bits of present.
func (m *matcher) note() {
	for _, id := range m.ids {
		if id >= 0 {
			m.present[id/64] |= 1 << (id % 64)
		}
	}
}

// complete reports whether the stack has a name of each element, except the last element, which the caller has found.
func (m *matcher) complete(p *pattern) bool {
	for i := range len(p.elements) - 1 {
		found := false
		for _, id := range p.elements[i].names {
			if m.present[id/64]&(1<<(id%64)) != 0 {
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// bestAt returns the best entry whose last name is the frame at depth. Lists in the table are sorted, best first.
// A generic entry is returned only if there is no other one. noSteps leaves out steps, because the caller has one
// already.
func (m *matcher) bestAt(depth int, noSteps bool) *entry {
	id := m.ids[depth]
	if id < 0 {
		return nil
	}
	for _, c := range m.table.anchored[id] {
		if noSteps && c.entry.kind == kindStep {
			continue
		}
		if m.matches(c, depth) && c.entry.allows(m.in) {
			return c.entry
		}
	}
	return nil
}

// matches reports whether the pattern's last name is the frame at depth, and its other names are frames further
// outwards.
func (m *matcher) matches(p *pattern, depth int) bool {
	if p.below >= 0 && depth > p.below {
		return false
	}
	if !m.complete(p) {
		return false
	}
	return m.outwards(p.elements, depth)
}

// outwards reports whether the last of the elements matches the frame at depth, and the elements before it match frames
// further outwards, within their gaps.
func (m *matcher) outwards(elements []element, depth int) bool {
	last := len(elements) - 1
	e := &elements[last]
	if !e.has(m.ids[depth]) || !m.absent(e.without, depth) {
		return false
	}
	if last == 0 {
		return true
	}
	end := len(m.ids)
	if e.gap >= 0 && depth+2+e.gap < end {
		end = depth + 2 + e.gap
	}
	for i := depth + 1; i < end; i++ {
		if m.outwards(elements[:last], i) {
			return true
		}
	}
	return false
}

// absent reports whether no frame inwards of depth has one of the names. A frame without a name might have it.
func (m *matcher) absent(names []int32, depth int) bool {
	if len(names) == 0 {
		return true
	}
	for _, id := range m.ids[:depth] {
		if id == nameless {
			return false
		}
		if slices.Contains(names, id) {
			return false
		}
	}
	return true
}
