// Package rules decides from what a server's sessions do at one moment whether something is wrong that a person should
// see: an incident. The rules are built in, and a file can change them or switch them off.
//
// A rule goes by the clock and by identity, never by the number of looks: it measures how long one and the same wait has
// lasted. The wait's start, the transaction or an unchanged count of context switches proves that it is the same one. A
// look that comes late proves nothing about the time before it. Several waits with one cause are one incident.
//
// The package must not read a process or write an incident. It gets rows, and returns findings.
//
// A WebhookSender sends the findings as alerts (webhook.go), in the format that Alertmanager sends (version 4). A receiver
// that is slow or down never delays its caller: alerts wait in a bounded queue, and further ones are dropped and counted.
package rules

import (
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// Look has the sessions and processes that the recorder sees at one time.
type Look struct {
	// Time must come from time.Now, with its monotonic clock: a step of the wall clock is no time that has passed.
	Time time.Time
	// Period is the planned time between two looks.
	Period time.Duration
	// Starved is how long the recorder was ready to run since the look before, and got no processor.
	Starved time.Duration
	// Rows are the sessions. Unread is set if no session could be read. Partial is set if some could not.
	Rows    []store.Row
	Unread  bool
	Partial bool
	// Procs has what the kernel says about the processes of the rows, by the server's process id.
	Procs map[int32]Proc
	// Clients is the number of client backends, and Slots the number that ordinary roles can have; 0: not known.
	Clients, Slots int
	// Archiver is the state of the archiver.
	Archiver Archiving
	// Stacks are the new stacks of running processes since the look before, by the server's process id. A stack whose
	// outermost frame is not known is absent.
	Stacks map[int32]Sample
	// Checkpointer is the state of the checkpointer, WAL the positions of WAL.
	Checkpointer Checkpointing
	WAL          Positions
	// Standbys describes the standbys for which commits wait, without names; empty: nothing is known.
	Standbys string
	// Unknown says why the processes are not known that block a session, by the server's process id. It may have names of relations.
	Unknown map[int32]string
}

// Sample is the stack of a process that runs.
type Sample struct {
	// Statement is the start of the statement that ran when the stack was wanted, as in store.Row.
	Statement int64
	// Functions are the names of the frames, the innermost first. Functions of a procedural language begin with "pl:".
	Functions []string
}

// Checkpointing is the state of the checkpointer. The zero value: there is none, or it waits for work and no session
// waits for it.
type Checkpointing struct {
	PID  int32
	Proc Proc
	// Work changes with each phase of a checkpoint, and IO with each read and write; 0: not known.
	Work, IO uint64
}

// Positions are how far WAL has come.
type Positions struct {
	// Known is set if the positions could be read.
	Known bool
	// Recovery is set on a standby. End is the end of the WAL on disk, Replayed of the WAL that was replayed. Paused is set if
	// replay is paused.
	Recovery      bool
	End, Replayed uint64
	Paused        bool
	Senders       []Sender
}

// Sender is a process that streams WAL.
type Sender struct {
	PID     int32
	Logical bool
	// Sent is the end of the WAL that was sent. Write, Flush and Apply are what the receiver has confirmed; 0: nothing. Reply
	// changes with each answer.
	Sent, Write, Flush, Apply, Reply uint64
}

// Archiving is the state of an archiver. The zero value: not known, or it does nothing.
type Archiving struct {
	PID int32
	// File is the file that it archives, or has failed to archive. It tries the same file again until it succeeds.
	File string
	// Done is set if its last file was archived.
	Done bool
}

// Proc has the kernel's figures of a process.
type Proc struct {
	// State is the letter of proc(5).
	State byte
	// Switches counts how often the process left a processor. A process that sleeps at two looks, with the same count,
	// has not run between them.
	Switches uint64
	// Ran is its time on processors; 0: not known. Only processes that run have it.
	Ran time.Duration
}

// sleeps reports whether the process is not on a processor and not waiting for one.
func (p Proc) sleeps() bool { return p.State == 'S' || p.State == 'D' || p.State == 'I' }

// Finding is a reason for an incident.
type Finding struct {
	// Rule is the name of the rule.
	Rule string `json:"rule"`
	// Cause names the cause. Findings with an equal cause are one incident.
	Cause string `json:"cause"`
	// Summary describes the stall in one sentence without names and texts of the server.
	Summary string `json:"summary"`
	// Since is when it began, as far as that is known.
	Since time.Time `json:"since"`
	// Processes are the server's ids of the processes involved. The others wait for Root; 0: there is no such process.
	Processes []int32 `json:"processes,omitempty"`
	Root      int32   `json:"root,omitempty"`

	keys []string // all names of the cause
}
