package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/limits"
)

// Request is a claimed row, with the current facts about its caller.
type Request struct {
	ID       int64
	Database string
	// Caller is the oid of the role that made the request. CallerName is its name at that time. The role may have been
	// dropped.
	Caller     uint32
	CallerName string
	// Superuser means that the role is a superuser at the time of the claim. Granted means that the role may make requests
	// at that time.
	Superuser bool
	Granted   bool
	// Backend is the pid of the requesting backend.
	Backend int
	// PID is the target process. Started is its start time (clock ticks since boot) at the time of the request; 0: the
	// process did not exist.
	PID     int
	Started uint64
	// Verb is "get" for the table and "log" for the server log.
	Verb string
	// Settings are the requester's settings pg_stat_backtrace.*, without that prefix.
	Settings map[string]string
	// ASCII means that the database accepts only ASCII characters.
	ASCII bool
	// Waited is the time for which the request has been in the queue.
	Waited time.Duration
}

// Result is the result of a request. It is a failure if SQLState is not empty.
type Result struct {
	Engine string
	Pause  time.Duration
	Depth  int
	Text   string

	SQLState string
	Message  string
	Detail   string
	Hint     string
}

// Server runs a function in the worker's main session. If the session breaks meanwhile, Server runs the function again in
// the next session. cluster.OrdinaryConn implements it.
type Server interface {
	Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
}

// Limiter limits how often a role's requests run. limits.Limiter implements it. Requests beyond the limit are not
// refused: they stay in the queue for ratePause.
type Limiter interface {
	Take(role uint32) error
}

// Config configures a Queue. Fields without a default must be set.
type Config struct {
	// Server is used to list the databases.
	Server Server
	// Connect opens a session in a database, and verifies that it belongs to the served server.
	Connect func(ctx context.Context, database string, notified pgconn.NotificationHandler) (*pgx.Conn, error)
	// Handle runs a request. It is called concurrently. Its context ends only with the worker, so it must limit its
	// own time.
	Handle func(ctx context.Context, r Request) Result
	// Journal collects the rows of waiting calls, which the sessions of the queue write.
	Journal *Journal
	// Depths receives the lengths of the queues; nil: they are not measured.
	Depths *Depths
	// Limiter limits roles that are not superusers; nil means no limit.
	Limiter Limiter
	// Log receives log messages.
	Log zerolog.Logger

	// Sessions is the largest number of the worker's sessions in the server, including its main session. 0 means a tenth of
	// the connection slots, at least 2 and at most 8.
	Sessions int

	Keep     time.Duration // rows older than this are removed; default limits.QueueKeep
	KeepRows int           // rows beyond this number are removed; default limits.QueueKeepRows in a database

	Batch   int           // rows claimed at a time; default limits.QueueBatch
	Grace   time.Duration // longest time for which a claim waits for captures; default 100 ms
	Poll    time.Duration // interval of checks without a notification; default 5 s
	Scan    time.Duration // interval of listing the databases; default 2 s
	MinLook time.Duration // first interval between visits to a database without the extension; default 1 s
	MaxLook time.Duration // longest such interval; default 30 s, and more if there are many databases
	Stay    time.Duration // pause between two new sessions while databases take turns; default 500 ms
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&c.Keep, limits.QueueKeep}, {&c.Grace, 100 * time.Millisecond}, {&c.Poll, 5 * time.Second},
		{&c.Scan, 2 * time.Second}, {&c.MinLook, time.Second}, {&c.MaxLook, 30 * time.Second},
		{&c.Stay, 500 * time.Millisecond},
	} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	if c.KeepRows <= 0 {
		c.KeepRows = limits.QueueKeepRows
	}
	if c.Batch <= 0 {
		c.Batch = limits.QueueBatch
	}
}
