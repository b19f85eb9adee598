package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
)

// Request is a row that has been claimed, with what the server says about its caller now.
type Request struct {
	ID       int64
	Database string
	// Caller is the oid of the role that asked, CallerName the name it had. The role may be gone.
	Caller     uint32
	CallerName string
	// Superuser is whether the role is one now, Granted whether it may make requests now.
	Superuser bool
	Granted   bool
	// Backend is the process that asked.
	Backend int
	// PID is the process asked about, Started its start time (clock ticks since boot) when it was asked about; 0: there
	// was none.
	PID     int
	Started uint64
	// Verb is "get" for the table and "log" for the server log.
	Verb string
	// Settings are the settings pg_stat_backtrace.* of the asking, without that prefix.
	Settings map[string]string
	// ASCII says that the database takes no other characters.
	ASCII bool
	// Waited is how long the request has been in the queue.
	Waited time.Duration
}

// Result is what came of a request. It is a failure if SQLState is not empty.
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

// Server runs a function in the worker's main session, and again in the next one if that breaks; cluster.Conn is one.
type Server interface {
	Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
}

// Limiter says whether a role may have another request carried out now; policy.Limiter is one. A request beyond that
// stays in the queue for a while: it is not refused.
type Limiter interface {
	Take(role uint32) error
}

// Config configures a Queue. Fields without a default must be set.
type Config struct {
	// Server is asked for the databases.
	Server Server
	// Connect opens a session in a database and makes sure that it leads to the server that is served.
	Connect func(ctx context.Context, database string, notified pgconn.NotificationHandler) (*pgx.Conn, error)
	// Handle carries out a request. It is called concurrently, and its context ends only with the worker: it bounds
	// its time itself.
	Handle func(ctx context.Context, r Request) Result
	// Journal has the rows of waiting calls.
	Journal *Journal
	// Depths gets the lengths of the queues; nil: they are not measured.
	Depths *Depths
	// Limiter bounds roles that are no superusers; nil: no limit.
	Limiter Limiter
	// Log receives what there is to say.
	Log zerolog.Logger

	// Sessions bounds the worker's sessions in the server, its main session included; 0: a tenth of the connection
	// slots, at least 2 and at most 8.
	Sessions int

	Keep     time.Duration // rows older than this are removed; default a week
	KeepRows int           // rows beyond this number are removed; default 10,000 a database

	Batch   int           // rows claimed at a time; default 100
	Grace   time.Duration // how long a claim is held for slow captures; default 100 ms
	Poll    time.Duration // pause after which a session looks without a notification; default 5 s
	Scan    time.Duration // pause between two looks at the databases; default 2 s
	MinLook time.Duration // first pause between two visits to a database without the extension; default 1 s
	MaxLook time.Duration // longest such pause; default 30 s, and more where there are many databases
	Stay    time.Duration // pause between two new sessions while databases take turns; default 500 ms
}

const (
	defaultKeep     = 7 * 24 * time.Hour
	defaultKeepRows = 10_000
	defaultBatch    = 100
)

func (c *Config) setDefaults() {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&c.Keep, defaultKeep}, {&c.Grace, 100 * time.Millisecond}, {&c.Poll, 5 * time.Second},
		{&c.Scan, 2 * time.Second}, {&c.MinLook, time.Second}, {&c.MaxLook, 30 * time.Second},
		{&c.Stay, 500 * time.Millisecond},
	} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	if c.KeepRows <= 0 {
		c.KeepRows = defaultKeepRows
	}
	if c.Batch <= 0 {
		c.Batch = defaultBatch
	}
}
