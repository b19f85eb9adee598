package state

import "pg_stat_backtrace/worker/pg/layout"

// BackendTypes returns the names of enum BackendType (miscadmin.h) of a major version by value, as pg_stat_activity
// shows them. It returns nil if the version is not known. The caller must not change the result.
func BackendTypes(version int) []string {
	l, ok := layout.Of(version)
	if !ok {
		return nil
	}
	return l.BackendTypes
}

// States returns the names of enum BackendState (backend_status.h) of a major version by value, as pg_stat_activity
// shows them. The first value has no name. It returns nil if the version is not known. The caller must not change the
// result.
func States(version int) []string {
	l, ok := layout.Of(version)
	if !ok {
		return nil
	}
	return l.BackendStates
}

// Backend types that callers distinguish, in the words of pg_stat_activity.
const (
	ClientBackend    = "client backend"
	Archiver         = "archiver"
	ParallelWorker   = "parallel worker"
	BackgroundWorker = "background worker"
)
