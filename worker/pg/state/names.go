package state

import (
	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/locks"
)

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

// RelationName returns the name of a relation by its oid and the oid of its database; empty: the name is not certain.
func (r *Reader) RelationName(database, relation uint32) string {
	if r.relations == nil {
		c := r.server.Cluster
		names, err := locks.OpenNames(&r.server.Program, c.Version, c.PostmasterPID, c.DataDir)
		if err != nil {
			return ""
		}
		r.relations = names
	}
	return r.relations.Names(database, []uint32{relation})[relation]
}
