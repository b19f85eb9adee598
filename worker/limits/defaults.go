package limits

import "time"

// Rates of a role that is not a superuser. RequestBurst is enough for a query over all processes of a large server.
const (
	RequestsPerSecond = 100 // option --rate
	RequestBurst      = 1000
	maxRoles          = 4096

	linesPerSecond = 10
	lineBurst      = 100

	// LookCost is the price, in requests, of each process that a request for all processes looks at.
	LookCost = 0.01
)

// Bounds of requests for which an SQL call waits.
const (
	Handlers       = 128      // requests that run at the same time
	Pending        = 4096     // requests that run or wait
	PendingBytes   = 16 << 20 // bytes of the files of these requests, which take somewhat more in memory
	UnfetchedBytes = 64 << 20 // bytes of answers that no call has read yet
	MaxTargets     = 5000     // processes that one request names
	MaxFrames      = 65536    // frames of a stack
	MaxTimeout     = 99_999   // milliseconds

	// MaxRequest bounds the file of a request, in bytes. Two names of 63 bytes and a few settings take some 500 bytes.
	// The rest is enough for MaxTargets numbers of up to 10 digits.
	MaxRequest = 64 << 10
)

// Resources of the worker that requests share. The worker's own data and Go's garbage collector
// take about as much memory again. The systemd unit has a MemoryMax of 512 MB.
const (
	Captures     = 16       // captures at the same time
	CaptureBytes = 64 << 20 // copied stacks, frames and their names
	AnswerBytes  = 64 << 20 // texts of answers until they are delivered

	// memoryTrees is the number of processes whose memory contexts are read at the same time. Each read keeps up to 64
	// MB in memory.
	memoryTrees = 3
)

// RecordedPlans bounds the processor time of the worker for plans in one sweep of the recorder (one look at all
// sessions). After this time the sweep reads no more plans.
const RecordedPlans = 10 * time.Millisecond

// Sizes of answers, in bytes.
const (
	// MaxAnswer bounds the file of an answer. The server reads it into its memory, and tmpfs takes memory too.
	MaxAnswer     = 8 << 20
	MaxRows       = 6 << 20   // texts of rows, of all processes of a request together
	MaxText       = 1 << 20   // text of one stack
	MaxQueuedText = 256 << 10 // one stack of a queued request; it is smaller because the results of a batch are written together
	MaxTraceRows  = 1000
	MaxTraceBytes = 4 << 20
	MaxRecords    = 50_000 // rows of a trace of wait events
)

// Memory contexts of one answer.
const (
	MaxContexts    = 50_000
	MaxMemoryPages = 16 << 10 // pages of 4 KiB
)

// Bounds of summaries as text, for which the worker adds up the samples of a call.
const (
	Summaries        = 16               // summaries at the same time
	MaxSummaryFrames = 200_000          // frames of all different stacks of a summary, which take about 10 MB
	MaxSummaryPause  = 90 * time.Minute // between two samples of a call: 1.5 times the longest interval
	SummaryIdle      = 2 * time.Minute  // a summary ends if the call's next request comes later than announced by this time
)

// Bounds of traces of functions for SQL callers.
const (
	Traces        = 4 // traces at the same time
	MaxTraceTime  = time.Hour
	TraceOverhead = 0.10 // part of the time of the traced process
)

// Bounds of queued requests, for which no call waits. The rows are enough for a week of occasional requests, or for
// some minutes of a flood, and take about 30 MB.
const (
	QueueKeep     = 7 * 24 * time.Hour // option --keep
	QueueKeepRows = 10_000             // option --keep-rows
	QueueBatch    = 100                // rows that a session claims at a time
	QueueMaxBatch = 10_000             // processes that one call of pg_request_backtrace names
	QueueWaiting  = 1000               // requests of one role that wait

	// SessionShare limits the worker's sessions, if option --sessions does not set the number: to a tenth of the
	// server's connection slots. MinSessions are the main session and one session for queues.
	SessionShare = 10
	MinSessions  = 2
	MaxSessions  = 8
)

// Actions of the incident screen, for each operator token.
const (
	ActionCaptures      = 1 // captures per second
	ActionCaptureBurst  = 10
	ActionIncidents     = 1.0 / 60 // incidents per second
	ActionIncidentBurst = 3
	ActionMeasures      = 1.0 / 20 // a second: profiles of a session, records of its waits
	ActionMeasureBurst  = 3
)

// Budgets of work that the worker does all the time.
const (
	// WaitsPercent is the part of the processors' busy time that the timing of wait events may take (option
	// --wait-event-budget).
	WaitsPercent = 3
	// ExportRate is the number of samples per second for profiles that the worker pushes to a receiver. It is a fifth
	// of the usual rate. It does not divide 10, 100 or 1000, so samples do not fall into step with periodic work of a
	// program.
	ExportRate = 19
	// ExportCost is the part of all processors' time that a profile to push may take. If it takes more, it ends early, and
	// the next one starts with the next interval.
	ExportCost = 0.01
	// RecorderProcesses is the largest number of processes whose files the recorder keeps open to take their stacks, with
	// four descriptors each. These files take at most a quarter of the descriptors that the worker may have.
	RecorderProcesses = 1000
)
