package levels

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// maxName bounds an identifier, which is at most 63 bytes (NAMEDATALEN).
const maxName = 64

// vacuuming is PostgreSQL's word for most phases of a VACUUM.
const vacuuming = "vacuuming"

// lastLinePointer is MaxOffsetNumber (off.h) with pages of 8 KiB.
const lastLinePointer = 2048

// maxStatement bounds the text of an SQL statement or expression that a level shows.
const maxStatement = reach

// spi describes a statement or expression that a function executes, as _SPI_error_callback (spi.c) does. The argument
// is an SPICallbackArg on the stack: the text and a RawParseMode (parser.h).
func (r *reader) spi(arg uint64) (backtrace.Level, bool) {
	const (
		expression       = 2
		firstAssign      = 3
		lastAssign       = 5
		lastParseMode    = 5
		assignmentPrefix = "PL/pgSQL assignment"
	)
	if _, onStack := r.frameOf(arg); !onStack {
		return backtrace.Level{}, false
	}
	query, ok1 := r.word(arg + uint64(r.layout.spiText))
	mode, ok2 := r.number(arg + uint64(r.layout.spiMode))
	if !ok1 || !ok2 || query == 0 || mode < 0 || mode > lastParseMode {
		return backtrace.Level{}, false
	}
	text, cut := r.text(r.in.Frozen, query, maxStatement)
	if text == "" {
		return backtrace.Level{}, false
	}
	prefix := "SQL statement"
	switch {
	case mode == expression:
		prefix = r.layout.expression
	case mode >= firstAssign && mode <= lastAssign:
		prefix = assignmentPrefix
	}
	return statementLevel(prefix, text, cut), true
}

func statementLevel(prefix, text string, cut bool) backtrace.Level {
	quote := `"`
	if cut {
		quote = `..."`
	}
	return backtrace.Level{Kind: backtrace.SPI, Query: text, Cut: cut, Text: prefix + ` "` + text + quote}
}

// sqlFunction names an SQL function and the number of its statement, as sql_exec_error_callback (functions.c) does.
// Before 18 the number comes from a list that changes while the function runs, so it is left out.
func (r *reader) sqlFunction(arg uint64) (backtrace.Level, bool) {
	const maxStatements = 1 << 20
	l := r.layout
	if l.sqlCacheIsArgument {
		at := arg + uint64(l.sqlEntry)
		entry, ok := r.word(at)
		n, ok2 := r.number(arg + uint64(l.sqlStatement))
		if !ok || !ok2 || n < 0 || n > maxStatements {
			return backtrace.Level{}, false
		}
		name, ok := r.name(entry+uint64(l.sqlName), at)
		if !ok {
			return backtrace.Level{}, false
		}
		level := backtrace.Level{Kind: backtrace.SQL, Function: name, Text: `SQL function "` + name + `" during startup`}
		if n > 0 {
			level.Text = fmt.Sprintf(`SQL function "%s" statement %d`, name, n)
		}
		return level, true
	}
	at := arg + uint64(l.fnExtra)
	cache, ok := r.word(at)
	if !ok || cache == 0 {
		return backtrace.Level{}, false
	}
	name, ok := r.name(cache+uint64(l.sqlName), at)
	return backtrace.Level{Kind: backtrace.SQL, Function: name, Text: `SQL function "` + name + `"`}, ok
}

// sqlInline names an SQL function that the planner inlines, as sql_inline_error_callback (clauses.c) does. The
// argument is on the stack.
func (r *reader) sqlInline(arg uint64) (backtrace.Level, bool) {
	p, ok := r.word(arg + uint64(r.layout.inlinedName))
	if _, onStack := r.frameOf(arg); !ok || !onStack {
		return backtrace.Level{}, false
	}
	name, cut := r.text(r.in.Frozen, p, maxName)
	return backtrace.Level{Kind: backtrace.SQL, Function: name, Text: `SQL function "` + name + `" during inlining`},
		name != "" && !cut
}

// copyFrom describes the position of a COPY FROM as CopyFromErrorCallback (copyfrom.c) does, but without the data.
func (r *reader) copyFrom(state uint64) (backtrace.Level, bool) {
	l := &r.layout.copy
	relation, ok1 := r.name(state+uint64(l.relname), state+uint64(l.relname))
	line, ok2 := r.word(state + uint64(l.lineno))
	if !ok1 || !ok2 || line >= 1<<48 {
		return backtrace.Level{}, false
	}
	level := backtrace.Level{Kind: backtrace.Copy, Relation: relation, Text: "COPY " + relation}
	if l.nameOnly != 0 {
		only, ok := r.flag(state + uint64(l.nameOnly))
		if !ok || only {
			return level, ok
		}
	}
	level.Line = int(line)
	level.Text += fmt.Sprintf(", line %d", line)
	at := state + uint64(l.attname)
	if p, ok := r.word(at); !ok || p == 0 {
		return level, ok
	}
	if column, ok := r.name(at, at); ok {
		level.Text += ", column " + column
	}
	return level, true
}

// vacuum describes the position of a VACUUM as vacuum_error_callback (vacuumlazy.c) does.
func (r *reader) vacuum(state uint64) (backtrace.Level, bool) {
	const ( // VacErrPhase
		scanHeap = 1 + iota
		vacuumIndex
		vacuumHeap
		cleanUpIndex
		truncate
	)
	l := &r.layout.vacuum
	phase, ok := r.number(state + uint64(l.phase))
	if !ok || phase < scanHeap || phase > truncate {
		return backtrace.Level{}, false
	}
	schema, ok1 := r.name(state+uint64(l.namespace), state+uint64(l.namespace))
	relation, ok2 := r.name(state+uint64(l.relname), state+uint64(l.relname))
	block, ok3 := r.number(state + uint64(l.block))
	if !ok1 || !ok2 || !ok3 {
		return backtrace.Level{}, false
	}
	level := backtrace.Level{Kind: backtrace.Vacuum, Relation: schema + "." + relation}
	verb := "scanning"
	switch phase {
	case vacuumIndex, cleanUpIndex:
		index, ok := r.name(state+uint64(l.indname), state+uint64(l.indname))
		verb = vacuuming
		if phase == cleanUpIndex {
			verb = "cleaning up"
		}
		level.Text = fmt.Sprintf(`while %s index "%s" of relation "%s"`, verb, index, level.Relation)
		return level, ok
	case truncate:
		level.Text = fmt.Sprintf(`while truncating relation "%s" to %d blocks`, level.Relation, uint32(block))
		return level, block != -1
	case vacuumHeap:
		verb = vacuuming
	}
	level.Text = "while " + verb + r.position(state, uint32(block)) + fmt.Sprintf(`relation "%s"`, level.Relation)
	return level, true
}

// parallelVacuum describes the position of a process of a parallel VACUUM as parallel_vacuum_error_callback
// (vacuumparallel.c) does.
func (r *reader) parallelVacuum(state uint64) (backtrace.Level, bool) {
	const ( // PVIndVacStatus
		needBulkDelete = 1 + iota
		needCleanUp
	)
	l := &r.layout.parallel
	status, ok := r.number(state + uint64(l.status))
	if l.status == 0 || !ok || status != needBulkDelete && status != needCleanUp {
		return backtrace.Level{}, false
	}
	schema, ok1 := r.name(state+uint64(l.namespace), state+uint64(l.namespace))
	relation, ok2 := r.name(state+uint64(l.relname), state+uint64(l.relname))
	index, ok3 := r.name(state+uint64(l.indname), state+uint64(l.indname))
	verb := vacuuming
	if status == needCleanUp {
		verb = "cleaning up"
	}
	level := backtrace.Level{Kind: backtrace.Vacuum, Relation: schema + "." + relation}
	level.Text = fmt.Sprintf(`while %s index "%s" of relation "%s"`, verb, index, level.Relation)
	return level, ok1 && ok2 && ok3
}

// position describes the block, and the line pointer in it, at which a VACUUM is.
func (r *reader) position(state uint64, block uint32) string {
	var b [2]byte
	if block == ^uint32(0) {
		return " "
	}
	if r.in.Frozen(state+uint64(r.layout.vacuum.offset), b[:]) == len(b) {
		if n := binary.NativeEndian.Uint16(b[:]); n >= 1 && n <= lastLinePointer {
			return fmt.Sprintf(" block %d offset %d of ", block, n)
		}
	}
	return fmt.Sprintf(" block %d of ", block)
}

// name follows the pointer at the address at, and reads the identifier there. The identifier is valid only as long as the
// word at the address in the parameter depends keeps its value. name returns false if that word differs from its value in the
// copy.
func (r *reader) name(at, depends uint64) (string, bool) {
	p, ok := r.word(at)
	if !ok {
		if p, ok = r.liveWord(at); !ok {
			return "", false
		}
	}
	text, cut := r.text(r.live, p, maxName)
	return text, text != "" && !cut && r.same(depends)
}
