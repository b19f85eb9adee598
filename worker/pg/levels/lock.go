package levels

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// relationRead and tupleRead are the pointers in an XactLockTableWaitInfo that tupleLock reads.
func (l *lockLayout) relationRead() Deref {
	return Deref{Offset: l.relation, Length: max(l.classRow+pointerSize, l.relationID+numberSize)}
}
func (l *lockLayout) tupleRead() Deref { return Deref{Offset: l.tuple, Length: l.tupleSize} }

// tupleLock describes a transaction that waits for another one, as XactLockTableWaitErrorCb (lmgr.c) does. The
// argument, on the stack, has an XLTW_Oper (lmgr.h), a relation and the position of a tuple.
func (r *reader) tupleLock(arg uint64) (backtrace.Level, bool) {
	if _, onStack := r.frameOf(arg); !onStack {
		return backtrace.Level{}, false
	}
	l := &r.layout.lock
	oper, ok1 := r.number(arg + uint64(l.oper))
	relation, ok2 := r.word(arg + uint64(l.relation))
	tuple, ok3 := r.word(arg + uint64(l.tuple))
	if !ok1 || !ok2 || !ok3 || oper < 1 || int(oper) > len(lockTexts) {
		return backtrace.Level{}, false
	}
	position := make([]byte, l.tupleSize)
	if tuple == 0 || r.in.Frozen(tuple, position) < len(position) {
		return backtrace.Level{}, false
	}
	part := func(at int) uint32 { return uint32(binary.NativeEndian.Uint16(position[at:])) }
	block, offset := part(l.blockHigh)<<16|part(l.blockLow), part(l.position)
	name, ok := r.relation(relation)
	if !ok || offset == 0 || offset > lastLinePointer {
		return backtrace.Level{}, false
	}
	return backtrace.Level{Kind: backtrace.Tuple, Relation: name, Text: fmt.Sprintf(lockTexts[oper-1], block, offset, name)}, true
}

// lockTexts are the texts by XLTW_Oper, beginning with XLTW_Update.
//
//nolint:gochecknoglobals // a table
var lockTexts = [...]string{
	`while updating tuple (%d,%d) in relation "%s"`,
	`while deleting tuple (%d,%d) in relation "%s"`,
	`while locking tuple (%d,%d) in relation "%s"`,
	`while locking updated version (%d,%d) of tuple in relation "%s"`,
	`while inserting index tuple (%d,%d) in relation "%s"`,
	`while checking uniqueness of tuple (%d,%d) in relation "%s"`,
	`while rechecking updated tuple (%d,%d) in relation "%s"`,
	`while checking exclusion constraint on tuple (%d,%d) in relation "%s"`,
}

// relation reads the name of a relation in use. The process's copy of the pg_class row must have the relation's oid.
func (r *reader) relation(relation uint64) (string, bool) {
	l := &r.layout.lock
	at := relation + uint64(l.classRow)
	class, ok1 := r.word(at)
	id, ok2 := r.number(relation + uint64(l.relationID))
	if !ok1 || !ok2 || id == 0 {
		return "", false
	}
	var oid [numberSize]byte
	if r.live(class+uint64(l.classID), oid[:]) < len(oid) || int32(binary.NativeEndian.Uint32(oid[:])) != id {
		return "", false
	}
	name, cut := r.text(r.live, class+uint64(l.className), maxName)
	return name, name != "" && !cut && r.same(at)
}
