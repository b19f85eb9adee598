package metrics

import "github.com/prometheus/client_golang/prometheus"

const prefix = "pg_stat_backtrace_"

// Labels.
const (
	labelType    = "type" // the type of a wait event
	labelSession = "session"
	labelStatus  = "state"
	labelMethod  = "method"
	labelTarget  = "receiver"
	labelEngine  = "engine"
	labelCall    = "call"
	labelMode    = "mode"
	labelOutcome = "outcome"
	labelEvent   = "event"
	labelBackend = "backend_type"
	labelState   = "sqlstate"
	labelVersion = "version"
	labelDataDir = "data_directory"
	other        = "other" // the value for all keys that have no series of their own
)

// desc describes a metric.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

// The metrics whose values are read at each scrape.
var (
	serverUp       = desc("server_up", "1 if the server runs, otherwise 0.")
	serverReadable = desc("server_readable", "1 if the worker can read the sessions of the server, otherwise 0.")
	serverInfo     = desc("server_info", "Always 1. The labels are the server's major version and its data directory.",
		labelVersion, labelDataDir)
	active = desc("active_sessions", "Active processes of the server by wait event.",
		labelType, labelEvent, labelBackend)
	sessions = desc("sessions", "Client backends by state.", labelStatus)

	connections       = desc("connections", "Client backends.")
	maxConnections    = desc("max_connections", "The server's parameter max_connections.")
	maxOrdinary       = desc("max_ordinary_connections", "The connections of max_connections that are not reserved.")
	oldestTransaction = desc("oldest_transaction_seconds",
		"Age of the oldest open transaction of a client backend, 0 if there is none.")
	longestLockWait = desc("longest_lock_wait_seconds",
		"Time for which a process has waited for a heavyweight lock, the longest one, 0 if none waits.")

	walReceivers   = desc("wal_receivers", "Receivers to which the server streams WAL.")
	replicationLag = desc("replication_lag_bytes",
		"WAL on the server's disk that the slowest receiver has not confirmed as flushed, 0 without receivers.")
	replayLag = desc("replay_lag_bytes", "WAL that a standby has received and not replayed yet.")

	waitSeconds   = desc("wait_seconds_total", "Time that processes waited, by wait event.", labelType, labelEvent)
	waitCount     = desc("waits_total", "Number of waits, by wait event.", labelType, labelEvent)
	waitDuration  = desc("wait_duration_seconds", "Duration of waits, by type of wait event.", labelType)
	eventDuration = desc("wait_event_duration_seconds", "Duration of waits, by wait event.", labelType, labelEvent)
	waitLost      = desc("wait_lost_total", "Waits and processes that are missing in the figures of wait events.")
	waitInfo      = desc("wait_timing_info", "Always 1. The label is the method by which wait events are timed.", labelMethod)

	buildInfo = desc("build_info", "Always 1. The labels are the versions of the worker and of Go.",
		labelVersion, "goversion")
	cpuSeconds  = desc("cpu_seconds_total", "Processor time of the worker.")
	residentMem = desc("resident_memory_bytes", "Resident memory of the worker.")
	openFiles   = desc("open_files", "Open file descriptors of the worker.")
	startTime   = desc("start_time_seconds", "Start of the worker, as a Unix time.")

	queueWaiting = desc("queue_waiting", "Requests in the queue that the worker has not taken yet.")
	queueClaimed = desc("queue_claimed", "Requests of the queue that the worker is working on.")
	queueOldest  = desc("queue_oldest_seconds", "Age of the oldest request in the queue, 0 if it is empty.")

	sessionLost = desc("session_lost_seconds",
		"Time for which the worker has had no session in the server, 0 while it has one.", labelSession)

	historyWritten = desc("history_sweeps_total", "Looks at all sessions that the history has.")
	historyLost    = desc("history_lost_sweeps_total", "Looks at all sessions that could not be written to the history.")
	historyFailing = desc("history_failing_seconds", "Time for which nothing could be written to the history, 0 while it works.")

	exportSent = desc("export_profiles_total", "Profiles that the receiver accepted.", labelTarget)
	exportFail = desc("export_failures_total", "Requests to the receiver that failed and are tried again.", labelTarget)
	exportDrop = desc("export_dropped_total", "Profiles given up: too old, refused by the receiver, or no room on disk.",
		labelTarget)
	exportPending = desc("export_pending", "Profiles that wait for the receiver.", labelTarget)
	exportBytes   = desc("export_pending_bytes", "Size of the profiles that wait for the receiver.", labelTarget)
)

// Limits of the number of series. Events beyond a limit are added to a series with the name "other".
const (
	// maxActive is the largest number of series of active_sessions. maxTypes of these are reserved, because each type may need
	// a series for all its other events.
	maxActive = 55
	// maxEvents is the largest number of series in each metric about the times of wait events. It includes a series for each
	// type.
	maxEvents = 42
	// maxTypes is the number of types of wait events, with CPU as a type.
	maxTypes = 11
	// maxStates is the number of SQLSTATEs in failures_total, including "other".
	maxStates = 10
)
