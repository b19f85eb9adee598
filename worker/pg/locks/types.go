package locks

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/pg/layout"
)

// Moment is the lock waits of a server at one time. Process ids are in the server's PID namespace.
type Moment struct {
	// Waits are in the order of the server's array of processes.
	Waits []Wait `json:"waits"`
	// Changed counts the waits whose lock changed during each attempt to read it.
	Changed int `json:"changed"`
	// Refused counts the waits with structures that are not consistent.
	Refused int `json:"refused"`
	// Reads counts the system calls that read memory.
	Reads int `json:"reads"`

	groups map[int]int // leaders of lock groups, by process id
}

// Kind says which mechanism a process waits for.
type Kind string

// The kinds. Only Lock has a tag and a mode.
const (
	Lock         Kind = "lock"
	SafeSnapshot Kind = "safe snapshot"
	SyncRep      Kind = "synchronous replication"
	Conflict     Kind = "recovery conflict"
	BufferPin    Kind = "buffer pin"
	LWLock       Kind = "lightweight lock"
)

// Wait is a process that waits, and its blockers.
type Wait struct {
	PID int `json:"pid"`
	// Proc is the position in the server's array of processes.
	Proc int `json:"proc"`
	// Leader is the process id of the lock group's leader; 0 if the process is in no group.
	Leader int  `json:"leader,omitempty"`
	Kind   Kind `json:"kind"`
	// Event is the number of the wait event.
	Event uint32 `json:"event"`
	Tag   *Tag   `json:"tag,omitempty"`
	Mode  Mode   `json:"mode,omitempty"`
	// Row is the lock of the row for which the process waits, if it waits for the transaction that has changed the row.
	Row *Tag `json:"row,omitempty"`
	// Since is the start of the wait, by the server's clock; zero if it is not known.
	Since    time.Time `json:"since,omitzero"`
	Blockers []Blocker `json:"blockers"`
	// Candidates are the ids of processes, one of which may hold the buffer pin; see pins.go. Page is the relation on
	// which the candidates and the waiting process have locks; nil: it is not known.
	Candidates []int `json:"candidates,omitempty"`
	Page       *Tag  `json:"page,omitempty"`
	// MoreCandidates counts the candidates that are not in Candidates.
	MoreCandidates int `json:"more_candidates,omitempty"`
	// Omitted counts the blockers that are not in Blockers, because the Moment has too many blockers.
	Omitted int `json:"omitted,omitempty"`
	// Reason says why the blockers are not known. It is empty if Blockers is complete.
	Reason string `json:"reason,omitempty"`
	// Changed means that the lock changed during each attempt to read it. Then Reason is set and there are no blockers.
	Changed bool `json:"changed,omitempty"`
}

// Blocker is a process or prepared transaction that a process waits for.
type Blocker struct {
	// PID is 0 for a prepared transaction.
	PID  int `json:"pid"`
	Proc int `json:"proc"`
	// Leader is the process id of the leader of the blocker's lock group, or PID without a group. pg_blocking_pids
	// returns this process.
	Leader int `json:"leader"`
	// Hard means that the blocker holds a lock in a conflicting mode. Otherwise the blocker is ahead of the waiting
	// process in the lock's queue.
	Hard bool `json:"hard"`
	// Held are the modes in which the blocker holds the lock.
	Held ModeSet `json:"held,omitempty"`
	// Wanted is the mode for which the blocker itself waits in this lock's queue.
	Wanted Mode `json:"wanted,omitempty"`
	// XID and GID are those of a prepared transaction. GID is empty if it could not be read.
	XID uint32 `json:"xid,omitempty"`
	GID string `json:"gid,omitempty"`
	// Behind is how many bytes of WAL, up to the end of the waiting commit, a synchronous standby has not confirmed.
	Behind uint64 `json:"behind_bytes,omitempty"`
}

// Mode is a lock mode (lockdefs.h).
type Mode int8

// ModeSet is a set of lock modes: bit n stands for mode n.
type ModeSet uint16

// Modes returns the modes of the set in ascending order.
func (s ModeSet) Modes() (modes []Mode) {
	for m := Mode(1); m.valid(); m++ {
		if uint32(s)&m.bit() != 0 {
			modes = append(modes, m)
		}
	}
	return modes
}

// String returns the names, separated by commas.
func (s ModeSet) String() string {
	var names []string
	for _, m := range s.Modes() {
		names = append(names, m.String())
	}
	return strings.Join(names, ", ")
}

// MarshalJSON returns the names as an array.
func (s ModeSet) MarshalJSON() ([]byte, error) { return json.Marshal(s.Modes()) }

//nolint:gochecknoglobals // a table
var modeNames = [...]string{
	"", "AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock",
	"ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock",
}

// String returns the name as in pg_locks.
func (m Mode) String() string {
	if m < 0 || int(m) >= len(modeNames) {
		return fmt.Sprintf("mode %d", int(m))
	}
	return modeNames[m]
}

// MarshalText returns the name as in pg_locks.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m Mode) valid() bool { return m > 0 && int(m) < len(modeNames) }

// bit is the mode's bit in a mask (LOCKBIT_ON).
func (m Mode) bit() uint32 { return 1 << m }

// conflicts has, for each mode, a mask of the conflicting modes (LockConflicts in lock.c).
//
//nolint:gochecknoglobals // a table
var conflicts = func() (masks [len(modeNames)]uint32) {
	for mode, others := range [...][]Mode{
		1: {8}, 2: {7, 8}, 3: {5, 6, 7, 8}, 4: {4, 5, 6, 7, 8}, 5: {3, 4, 6, 7, 8}, 6: {3, 4, 5, 6, 7, 8},
		7: {2, 3, 4, 5, 6, 7, 8}, 8: {1, 2, 3, 4, 5, 6, 7, 8},
	} {
		for _, other := range others {
			masks[mode] |= other.bit()
		}
	}
	return masks
}()

// Tag identifies a lock (LOCKTAG in lock.h). Fields that the type of the lock does not have are 0.
type Tag struct {
	// Type is as pg_locks.locktype has it.
	Type     string `json:"type"`
	Database uint32 `json:"database,omitempty"`
	Relation uint32 `json:"relation,omitempty"`
	// Name is the name of the relation, without its schema, if it is certain.
	Name  string `json:"name,omitempty"`
	Page  uint32 `json:"page,omitempty"`
	Tuple uint16 `json:"tuple,omitempty"`
	// XID is the transaction id in the tag of a transaction lock, a speculative insertion lock or an apply lock.
	XID uint32 `json:"xid,omitempty"`
	// Token is the token of a speculative insertion.
	Token uint32 `json:"token,omitempty"`
	// VirtualProc and VirtualXID are the two parts of a virtual transaction id.
	VirtualProc uint32 `json:"virtual_proc,omitempty"`
	VirtualXID  uint32 `json:"virtual_xid,omitempty"`
	// ClassID, ObjectID and SubID are an object's address. An advisory lock with two keys has them in ClassID and ObjectID, and
	// its SubID is 2. With one key SubID is 1, and the key's upper half is in ClassID.
	ClassID  uint32 `json:"class,omitempty"`
	ObjectID uint32 `json:"object,omitempty"`
	SubID    uint16 `json:"sub,omitempty"`
	// Fields are the tag's fields as they are in memory.
	Fields [4]uint32 `json:"-"`
}

// The types (LockTagType in lock.h). Their names are as in pg_locks.
const (
	tagRelation = iota
	tagExtend
	tagFrozenIDs
	tagPage
	tagTuple
	tagTransaction
	tagVirtualTransaction
	tagSpeculative
	tagObject
	tagUser
	tagAdvisory
	tagApply
)

//nolint:gochecknoglobals // a table
var tagNames = [...]string{
	"relation", "extend", "frozenid", "page", "tuple", "transactionid", "virtualxid", "spectoken", "object", "userlock",
	"advisory", "applytransaction",
}

// readTag reads a LOCKTAG: three words, a half-word, type and method. It returns false for a type or method that does
// not exist.
func readTag(b []byte, l *layout.Locks) (tag Tag, kind int, ok bool) {
	const defaultMethod, userMethod = 1, 2
	f := [4]uint32{u32(b, l.TagField1), u32(b, l.TagField2), u32(b, l.TagField3), uint32(u16(b, l.TagField4))}
	kind = int(b[l.TagType])
	want := byte(defaultMethod)
	if kind == tagUser || kind == tagAdvisory {
		want = userMethod
	}
	if kind >= len(tagNames) || b[l.TagMethod] != want {
		return Tag{}, kind, false
	}
	tag = Tag{Type: tagNames[kind], Fields: f}
	switch kind {
	case tagRelation, tagExtend:
		tag.Database, tag.Relation = f[0], f[1]
	case tagFrozenIDs:
		tag.Database = f[0]
	case tagPage, tagTuple:
		tag.Database, tag.Relation, tag.Page, tag.Tuple = f[0], f[1], f[2], uint16(f[3])
	case tagTransaction:
		tag.XID = f[0]
	case tagVirtualTransaction:
		tag.VirtualProc, tag.VirtualXID = f[0], f[1]
	case tagSpeculative:
		tag.XID, tag.Token = f[0], f[1]
	case tagApply:
		tag.Database, tag.Relation, tag.XID, tag.SubID = f[0], f[1], f[2], uint16(f[3])
	default:
		tag.Database, tag.ClassID, tag.ObjectID, tag.SubID = f[0], f[1], f[2], uint16(f[3])
	}
	return tag, kind, true
}

// hasRelation reports whether the lock is on a relation or on a part of a relation.
func (t *Tag) hasRelation() bool {
	return t != nil && (t.Type == "relation" || t.Type == "extend" || t.Type == "page" || t.Type == "tuple")
}

// relation describes the relation: by its name if it is known, and by numbers.
func (t *Tag) relation() string {
	number := fmt.Sprintf("relation %d of database %d", t.Relation, t.Database)
	if t.Name == "" {
		return number
	}
	return t.Name + " (" + number + ")"
}

// String describes the lock: a relation with its name, if it is known, and all else with numbers only.
func (t *Tag) String() string {
	switch t.Type {
	case "relation":
		return t.relation()
	case "extend":
		return "extension of " + t.relation()
	case "page":
		return fmt.Sprintf("page %d of %s", t.Page, t.relation())
	case "tuple":
		return fmt.Sprintf("tuple (%d,%d) of %s", t.Page, t.Tuple, t.relation())
	case "transactionid":
		return fmt.Sprintf("transaction %d", t.XID)
	case "virtualxid":
		return fmt.Sprintf("virtual transaction %d/%d", t.VirtualProc, t.VirtualXID)
	case "spectoken":
		return fmt.Sprintf("speculative token %d of transaction %d", t.Token, t.XID)
	case "frozenid":
		return fmt.Sprintf("frozen ids of database %d", t.Database)
	case "applytransaction":
		return fmt.Sprintf("remote transaction %d of subscription %d of database %d", t.XID, t.Relation, t.Database)
	case "advisory":
		if t.SubID == 1 {
			return fmt.Sprintf("advisory lock %d of database %d", int64(uint64(t.ClassID)<<32|uint64(t.ObjectID)), t.Database)
		}
		return fmt.Sprintf("advisory lock (%d, %d) of database %d", int32(t.ClassID), int32(t.ObjectID), t.Database)
	}
	return fmt.Sprintf("%s %d of class %d of database %d", t.Type, t.ObjectID, t.ClassID, t.Database)
}

// String describes the blocker in one line.
func (b *Blocker) String() string {
	name := strconv.Itoa(b.PID)
	if b.PID == 0 {
		name = fmt.Sprintf("prepared transaction %d", b.XID)
		if b.GID != "" {
			name += fmt.Sprintf(" %q", b.GID)
		}
	}
	if b.Leader != b.PID {
		name += fmt.Sprintf(" of group %d", b.Leader)
	}
	switch {
	case b.Hard && b.Held != 0:
		return name + " (holds " + b.Held.String() + ")"
	case !b.Hard && b.Wanted != 0:
		return name + " (in front in the queue for " + b.Wanted.String() + ")"
	}
	return name
}
