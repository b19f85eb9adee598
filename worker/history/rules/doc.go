// Package rules finds incidents: states of a server that a person should see, such as a long wait for a lock. It gets the state of
// the sessions at one time (type Look), about once a second. The rules are built in, and a file can change them or switch them off.
//
// A rule measures how long the same wait has lasted by the clock; it does not count looks. If the start of the wait, the
// transaction or the number of context switches is unchanged between two looks, the wait is the same. A late look proves nothing
// about the time before it. Several waits with one cause are one incident.
//
// The package must not read a process or write an incident. It gets rows, and returns findings.
//
// A WebhookSender sends the findings as alerts (webhook.go), in the format that Alertmanager sends (version 4). A receiver
// that is slow or down never delays the sender's caller: alerts wait in a bounded queue. If the queue is full, an alert is dropped
// and counted.
package rules

import (
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// Look has the sessions and processes that the recorder sees at one time.
type Look struct {
	// Time must come from time.Now, so that it has a reading of the monotonic clock: the wall clock may be set.
	Time time.Time
	// Period is the planned time between two looks.
	Period time.Duration
	// Starved is the part of the time since the last look in which the recorder was ready to run but got no processor.
	Starved time.Duration
	// Rows are the sessions. Unread is set if no session could be read. Partial is set if some could not be read.
	Rows    []store.Row
	Unread  bool
	Partial bool
	// Procs has the kernel's figures of the processes of the rows, by the server's process id.
	Procs map[int32]Proc
	// Clients is the number of client backends. Slots is the number of connection slots for ordinary roles; 0: not known.
	Clients, Slots int
	// Archiver is the state of the archiver.
	Archiver Archiving
	// Stacks are the stacks that were taken since the last look, by the server's process id. Only complete stacks are in it.
	Stacks map[int32]Sample
	// Checkpointer is the state of the checkpointer, and WAL has positions in the WAL.
	Checkpointer Checkpointing
	WAL          Positions
	// Standbys describes the standbys for which commits wait, without names; empty: not known.
	Standbys string
	// Unknown has the reasons why the blockers of a session are not known, by the server's process id of the session. A reason may
	// contain names of relations.
	Unknown map[int32]string
}

// Sample is the stack of a process.
type Sample struct {
	// Statement is the start of the session's statement, as in store.Row.QueryStart, when the recorder decided to take the stack.
	Statement int64
	// Functions are the names of the frames, the innermost first. Functions of a procedural language begin with "pl:".
	Functions []string
}

// Checkpointing is the state of the checkpointer. The zero value means that its state is not known, or that it waits for work and
// no session waits for it.
type Checkpointing struct {
	PID  int32
	Proc Proc
	// Work is a value that changes with each phase of a checkpoint. IO is a value that changes each time the process reads or
	// writes; 0: not known.
	Work, IO uint64
}

// Positions are positions (LSNs) in the WAL.
type Positions struct {
	// Known is set if the positions could be read.
	Known bool
	// Recovery is set on a standby. End is the end of the WAL on disk, and Replayed the end of the replayed WAL. Paused is set if
	// replay is paused.
	Recovery      bool
	End, Replayed uint64
	Paused        bool
	Senders       []Sender
}

// Sender is a WAL sender: a process that streams WAL to a receiver.
type Sender struct {
	PID     int32
	Logical bool
	// Sent is the end of the WAL that was sent. Write, Flush and Apply are the positions that the receiver has confirmed; 0: none.
	// Reply is a value that changes with each answer of the receiver.
	Sent, Write, Flush, Apply, Reply uint64
}

// Archiving is the state of the archiver. The zero value means that the state is not known, or that the archiver is idle.
type Archiving struct {
	PID int32
	// File is the file that the archiver archives, or has failed to archive. It tries the same file again until it succeeds.
	File string
	// Done is set if the last file was archived.
	Done bool
}

// Proc has the kernel's figures of a process.
type Proc struct {
	// State is the letter of the process's state in proc(5); 0: not known.
	State byte
	// Switches is the number of context switches of the process. If a process sleeps at two looks and the number is equal, it has
	// not run between them.
	Switches uint64
	// Ran is the process's time on processors since its start; 0: not known. It is only read for running processes (state R).
	Ran time.Duration
}

// sleeps reports whether the process is not on a processor and not waiting for one.
func (p Proc) sleeps() bool { return p.State == 'S' || p.State == 'D' || p.State == 'I' }

// Finding is a reason for an incident.
type Finding struct {
	// Rule is the name of the rule.
	Rule string `json:"rule"`
	// Cause identifies the cause. Findings with an equal cause are one incident.
	Cause string `json:"cause"`
	// Summary describes the incident in one sentence, without names of objects and texts of statements.
	Summary string `json:"summary"`
	// Since is the time at which the state began, as far as it is known.
	Since time.Time `json:"since"`
	// Processes are the server's ids of the processes involved. Root is the process for which the others wait; 0: there is none.
	Processes []int32 `json:"processes,omitempty"`
	Root      int32   `json:"root,omitempty"`

	keys []string // Cause and further names of the cause; findings with a common key are merged
	role uint32   // the role (OID) of the session that is the cause; 0: none
}
