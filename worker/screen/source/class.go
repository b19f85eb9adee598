package source

import (
	"slices"

	"pg_stat_backtrace/worker/moment"
)

// The wait classes of active sessions. Except for CPU and Other, they are wait_event_type of pg_stat_activity until PostgreSQL 18.
// A session of the class CPU has no wait event: it runs, or waits for a processor, or waits in code for which PostgreSQL has no
// wait event.
const (
	CPU       = "CPU"
	IO        = "IO"
	LWLock    = "LWLock"
	Lock      = "Lock"
	BufferPin = "BufferPin"
	IPC       = "IPC"
	Client    = "Client"
	Timeout   = "Timeout"
	Extension = "Extension"
	Injection = "InjectionPoint"
	Other     = "Other"
)

// Classes returns all wait classes in the order in which a chart stacks them, from the bottom.
func Classes() []string {
	return []string{CPU, IO, LWLock, Lock, BufferPin, IPC, Client, Timeout, Extension, Injection, Other}
}

// States of pg_stat_activity.
const (
	stateActive   = "active"
	stateIdle     = "idle"
	stateDisabled = "disabled"
	idleInTx      = "idle in transaction"
	idleAborted   = "idle in transaction (aborted)"
	fastpath      = "fastpath function call"
	clientBackend = "client backend"
	walSender     = "walsender"
)

// fromBuffer returns the wait class of an event of the type Buffer, which PostgreSQL has since version 19: BufferCleanup was a buffer
// pin before, and the other events were lightweight locks.
func fromBuffer(event string) string {
	if event == "BufferCleanup" {
		return BufferPin
	}
	return LWLock
}

// ClassOf returns the wait class of a session, or an empty string if the session is not active. A server process without a
// state in pg_stat_activity, such as the checkpointer, is active unless it waits for work, or pauses.
func ClassOf(s *moment.Session) string {
	wait := ""
	if s.Wait != nil {
		wait = s.Wait.Type
	}
	if wait == "Buffer" {
		wait = fromBuffer(s.Wait.Event)
	}
	if wait == "Activity" {
		return ""
	}
	switch s.State {
	case stateActive, fastpath:
	case stateDisabled: // track_activities is off: only the wait is known
		if wait == Client || wait == "" {
			return ""
		}
	case "":
		if s.Type == clientBackend || s.Type == walSender || !slices.Contains([]string{"", IO, LWLock, Lock, BufferPin, IPC}, wait) {
			return ""
		}
	default:
		return ""
	}
	switch {
	case wait == "":
		return CPU
	case slices.Contains(Classes(), wait):
		return wait
	}
	return Other
}

// inTransaction reports whether a session is idle in a transaction.
func inTransaction(s *moment.Session) bool { return s.State == idleInTx || s.State == idleAborted }

// eventOf returns type and name of a session's wait event as TYPE:NAME, or CPU without a wait event.
func eventOf(s *moment.Session) string {
	if s.Wait == nil {
		return CPU
	}
	return s.Wait.Type + ":" + s.Wait.Event
}
