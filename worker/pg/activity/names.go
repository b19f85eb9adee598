package activity

// BackendTypes returns the names of enum BackendType (miscadmin.h) of a major version by value, as pg_stat_activity
// shows them. It returns nil if the version is not known. The caller must not change the result.
func BackendTypes(version int) []string { return backendTypes[version] }

// States returns the names of enum BackendState (backend_status.h) of a major version by value, as pg_stat_activity
// shows them. The first value has no name. It returns nil if the version is not known. The caller must not change the
// result.
func States(version int) []string {
	switch {
	case backendTypes[version] == nil:
		return nil
	case version < 18:
		return oldStates
	}
	return newStates
}

// Names of types of processes that callers distinguish.
const (
	ClientBackend    = "client backend"
	ParallelWorker   = "parallel worker"
	BackgroundWorker = "background worker"
)

//nolint:gochecknoglobals // tables
var (
	oldStates = []string{
		"", "idle", "active", "idle in transaction", "fastpath function call", "idle in transaction (aborted)", "disabled",
	}
	newStates = []string{
		"", "starting", "idle", "active", "idle in transaction", "fastpath function call", "idle in transaction (aborted)",
		"disabled",
	}
	backendTypes = map[int][]string{
		14: {
			"", "autovacuum launcher", "autovacuum worker", ClientBackend, BackgroundWorker, "background writer",
			"checkpointer", "startup", "walreceiver", "walsender", "walwriter", "archiver", "stats collector", "logger",
		},
		15: {
			"", "autovacuum launcher", "autovacuum worker", ClientBackend, BackgroundWorker, "background writer",
			"checkpointer", "startup", "walreceiver", "walsender", "walwriter", "archiver", "logger",
		},
		16: {
			"", "archiver", "autovacuum launcher", "autovacuum worker", ClientBackend, BackgroundWorker, "background writer",
			"checkpointer", "logger", "standalone backend", "startup", "walreceiver", "walsender", "walwriter",
		},
		17: {
			"", ClientBackend, "autovacuum launcher", "autovacuum worker", BackgroundWorker, "walsender", "slotsync worker",
			"standalone backend", "archiver", "background writer", "checkpointer", "startup", "walreceiver",
			"walsummarizer", "walwriter", "logger",
		},
		18: {
			"", ClientBackend, "dead-end client backend", "autovacuum launcher", "autovacuum worker", BackgroundWorker,
			"walsender", "slotsync worker", "standalone backend", "archiver", "background writer", "checkpointer",
			"io worker", "startup", "walreceiver", "walsummarizer", "walwriter", "logger",
		},
		19: {
			"", ClientBackend, "dead-end client backend", "autovacuum launcher", "autovacuum worker", BackgroundWorker,
			"walsender", "slotsync worker", "standalone backend", "archiver", "background writer", "checkpointer",
			"io worker", "startup", "walreceiver", "walsummarizer", "walwriter", "syslogger",
		},
	}
)
