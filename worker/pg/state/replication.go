package state

import (
	"encoding/binary"
	"errors"
	"hash/fnv"

	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/locks"
)

// ErrNoPositions means that the positions of WAL are not known: this version of the server has them elsewhere, or the server
// has not created their structures yet.
var ErrNoPositions = errors.New("the positions of WAL were not found in the server's memory")

// maxSenders bounds the WAL senders that are read.
const maxSenders = 10_000

// Positions are positions in WAL (LSNs) of a server at one time, in bytes from the start of WAL.
type Positions struct {
	// Recovery is set on a standby and during a recovery.
	Recovery bool
	// End is the end of the WAL that the server has on disk: written by itself, or received in recovery; 0: not known.
	End uint64
	// Replayed is the end of the last record that was replayed, and Paused is set if replay is paused. Both are set
	// only if Recovery is set.
	Replayed uint64
	Paused   bool
	Senders  []Sender
}

// Sender is a process that streams WAL.
type Sender struct {
	PID     int // in the server's PID namespace
	Logical bool
	// Sent, Write, Flush and Apply are as in pg_stat_replication; 0: not known.
	Sent, Write, Flush, Apply uint64
	// Reply is a number that changes with each reply of the receiver to the sender (replyTime).
	Reply uint64
}

// ReplayLag returns the bytes of WAL that a standby has received and not replayed yet.
func (p *Positions) ReplayLag() uint64 { return behind(p.End, p.Replayed) }

// SenderLag returns the bytes of WAL on the server's disk that the slowest receiver has not confirmed as flushed. For a
// receiver that has confirmed nothing yet, it counts the WAL that was not sent. The result is 0 without receivers.
func (p *Positions) SenderLag() (most uint64) {
	for i := range p.Senders {
		at := p.Senders[i].Flush
		if at == 0 {
			at = p.Senders[i].Sent
		}
		if at != 0 {
			most = max(most, behind(p.End, at))
		}
	}
	return most
}

// behind returns how many bytes the position at is behind the position end. The result is 0 if at is not known. It is also 0
// if at is greater, because the two were read one after the other.
func behind(end, at uint64) uint64 {
	if at == 0 || end < at {
		return 0
	}
	return end - at
}

// Positions reads the positions of WAL. database reports whether a sender is connected to a database, which makes it Logical.
// Positions calls database only for 14 and 15, whose table of senders does not show this. Both readers, r and l, must belong
// to the same run of the server.
func (r *Reader) Positions(l *locks.Reader, database func(pid int) bool) (p Positions, err error) {
	places, ok := layout.ReplicationOf(r.server.Cluster.Version)
	if !ok || l == nil {
		return p, ErrNoPositions
	}
	word := func(region string, at int) uint64 {
		start := l.Region(region)
		if err != nil || start == 0 {
			err = errors.Join(err, ErrNoPositions)
			return 0
		}
		var b [8]byte
		if err = r.full(start+uint64(at), b[:]); err != nil {
			return 0
		}
		return binary.NativeEndian.Uint64(b[:])
	}
	const control = "XLOG Ctl"
	state := uint32(word(control, places.State))
	if err == nil && state > uint32(places.StateDone) {
		return p, ErrNoPositions
	}
	if p.Recovery = state != uint32(places.StateDone); p.Recovery {
		p.End = word("Wal Receiver Ctl", places.Received)
		p.Replayed = word(places.ReplayIn, places.Replayed)
		p.Paused = uint32(word(places.ReplayIn, places.Pause)) == uint32(places.IsPause)
	} else {
		p.End = word(control, places.Flushed)
	}
	if err != nil {
		return Positions{}, err
	}
	if p.Senders, err = r.senders(l, &places, database); err != nil {
		return Positions{}, err
	}
	return p, nil
}

// WAL reads the positions of WAL. Senders of PostgreSQL 14 and 15 are never Logical. The error wraps ErrNoPositions or
// waits.ErrUnsupported if this version has the positions elsewhere.
func (r *Reader) WAL() (Positions, error) {
	if r.locks == nil {
		reader, err := locks.Open(r.server.Cluster)
		if err != nil {
			return Positions{}, err
		}
		r.locks = reader
	}
	return r.Positions(r.locks, func(int) bool { return false })
}

// senders reads the table of WAL senders.
func (r *Reader) senders(l *locks.Reader, places *layout.Replication, database func(pid int) bool) ([]Sender, error) {
	n := r.Integers("max_wal_senders")["max_wal_senders"]
	table := l.Region("Wal Sender Ctl")
	if n <= 0 || n > maxSenders || table == 0 {
		return nil, nil
	}
	b := make([]byte, n*places.SndSize)
	if err := r.full(table+uint64(places.Senders), b); err != nil {
		return nil, err
	}
	var list []Sender
	for ; len(b) >= places.SndSize; b = b[places.SndSize:] {
		number := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
		position := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
		pid, state := int(int32(number(places.SndPID))), number(places.SndState)
		if pid <= 0 || state != places.SndCatchup && state != places.SndStreaming {
			continue // a base backup has no positions
		}
		s := Sender{
			PID: pid, Sent: position(places.SndSent), Write: position(places.SndWrite), Flush: position(places.SndFlush),
			Apply: position(places.SndApply), Reply: position(places.SndReply),
		}
		if places.SndKind != 0 {
			s.Logical = number(places.SndKind) == places.SndLogical
		} else {
			s.Logical = database(pid)
		}
		list = append(list, s)
	}
	return list, nil
}

// CheckpointWork returns a hash of the checkpointer's figures of the checkpoint in progress, or of the last one. Two equal
// results mean that the checkpointer has reached no further phase in between. pid is the checkpointer's id in this process's
// PID namespace. The result is 0 if the figures cannot be read.
func (r *Reader) CheckpointWork(pid int) uint64 {
	places, ok := layout.ReplicationOf(r.server.Cluster.Version)
	if !ok {
		return 0
	}
	variables, err := r.server.Program.Variables("CheckpointStats")
	at := variables["CheckpointStats"]
	if rights := r.server.Target.Rights; err != nil || at == 0 || rights != nil && rights.Verify(pid) != nil {
		return 0
	}
	b := make([]byte, places.StatsSize)
	if n, err := r.child(pid, at, b); err != nil || n < len(b) {
		return 0
	}
	hash := fnv.New64a()
	_, _ = hash.Write(b)
	return hash.Sum64() | 1
}
