package limits

import "time"

// Rates of a role that is not a superuser. A query over all processes of a large server fits into RequestBurst.
const (
	RequestsPerSecond = 100 // option --rate
	RequestBurst      = 1000
	maxRoles          = 4096

	linesPerSecond = 10
	lineBurst      = 100

	// LookCost is the price, in requests, of a process that the role did not name and that a request for all processes
	// looks at.
	LookCost = 0.01
)

// Requests of waiting calls.
const (
	Handlers       = 128      // that run at the same time
	Pending        = 4096     // that run or wait
	PendingBytes   = 16 << 20 // of the files of these requests, which take somewhat more in memory
	UnfetchedBytes = 64 << 20 // of answers
	MaxTargets     = 5000     // processes that a request names
	MaxFrames      = 65536    // of a stack
	MaxTimeout     = 99_999   // milliseconds

	// MaxRequest bounds the file of a request, in bytes. Two names of 63 bytes and a few settings take some 500, and
	// MaxTargets numbers of up to 10 digits the rest.
	MaxRequest = 64 << 10
)

// Resources of the worker that requests share. The worker's own data and Go's collector take about as much memory
// again, and the MemoryMax of the unit is 512 MB.
const (
	Captures     = 16       // at the same time
	CaptureBytes = 64 << 20 // copied stacks, frames and their names
	AnswerBytes  = 64 << 20 // texts of answers until they are delivered

	// memoryTrees is the number of processes whose memory contexts are read at the same time. Each reading keeps up to
	// 64 MB.
	memoryTrees = 3
)

// RecordedPlans is the processor time of the worker after which a sweep of the recorder reads no more plans.
const RecordedPlans = 10 * time.Millisecond

// Sizes of answers, in bytes.
const (
	// MaxAnswer bounds the file of an answer. The server reads it into its memory, and tmpfs takes memory too.
	MaxAnswer     = 8 << 20
	MaxRows       = 6 << 20   // the texts of rows, also of all processes of a request together
	MaxText       = 1 << 20   // one stack
	MaxQueuedText = 256 << 10 // one stack of a queued request: the results of a batch are written together
	MaxTraceRows  = 1000
	MaxTraceBytes = 4 << 20
	MaxRecords    = 50_000 // rows of a trace of wait events
)

// Memory contexts of one answer.
const (
	MaxContexts    = 50_000
	MaxMemoryPages = 16 << 10 // pages of 4 KiB
)

// Summaries as text: the worker adds up the samples of a call.
const (
	Summaries        = 16               // at the same time
	MaxSummaryFrames = 200_000          // of the different stacks of a summary, in about 10 MB
	MaxSummaryPause  = 90 * time.Minute // between samples: one and a half of the longest interval
	SummaryIdle      = 2 * time.Minute  // after this time beyond the pause, a summary without requests ends
)

// Traces of functions for SQL callers.
const (
	Traces        = 4 // at the same time
	MaxTraceTime  = time.Hour
	TraceOverhead = 0.10 // of the time of the traced process
)

// Requests that do not wait. The rows are a week of occasional requests, or some minutes of a flood, in about 30 MB.
const (
	QueueKeep     = 7 * 24 * time.Hour // option --keep
	QueueKeepRows = 10_000             // option --keep-rows
	QueueBatch    = 100                // rows that a session claims at a time
	QueueMaxBatch = 10_000             // processes that one call of pg_request_backtrace names
	QueueWaiting  = 1000               // requests of a role that wait

	// SessionShare limits the worker's sessions, if option --sessions does not set the number: to a tenth of the connection
	// slots, but at least the main session and one for queues.
	SessionShare = 10
	MinSessions  = 2
	MaxSessions  = 8
)

// Actions of the incident screen, for each operator token.
const (
	ActionCaptures      = 1 // a second
	ActionCaptureBurst  = 10
	ActionIncidents     = 1.0 / 60 // a second
	ActionIncidentBurst = 3
)

// Budgets of work that the worker does all the time.
const (
	// WaitsPercent is the part of the processors' busy time that the timing of wait events may take (option
	// --wait-event-budget).
	WaitsPercent = 3
	// ExportRate is the number of samples per second for profiles that the worker pushes to a receiver. It is a fifth of
	// the usual rate, and no divisor of the frequencies at which programs work.
	ExportRate = 19
	// ExportCost is the part of all processors' time that a profile to push may take. If it takes more, it ends early, and
	// the next one starts with the next interval.
	ExportCost = 0.01
	// RecorderProcesses is the largest number of processes whose files the recorder keeps open to take their stacks, with
	// four descriptors each. The recorder takes at most a quarter of the descriptors that the worker may have.
	RecorderProcesses = 1000
)
