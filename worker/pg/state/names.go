package state

import (
	"maps"
	"slices"
	"time"

	"pg_stat_backtrace/worker/moment"
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
	if names := r.catalogNames(); names != nil {
		return names.Names(database, []uint32{relation})[relation]
	}
	return ""
}

// catalogNames returns the reader of names in the pages of catalogs; nil: this server's pages cannot be read.
func (r *Reader) catalogNames() *locks.NameReader {
	if r.relations == nil {
		c := r.server.Cluster
		names, err := locks.OpenNames(&r.server.Program, c.Version, c.PostmasterPID, c.DataDir)
		if err != nil {
			return nil
		}
		r.relations = names
	}
	return r.relations
}

// findNames adds the names of the databases and roles of sessions that no backend knows, as of the logical replication launcher. It
// looks for them once in a minute.
func (r *Reader) findNames(sessions []moment.Session) {
	const pause = time.Minute
	databases, users := map[uint32]bool{}, map[uint32]bool{}
	for i := range sessions {
		s := &sessions[i]
		if s.DatabaseOID != 0 && r.databases[s.DatabaseOID] == "" {
			databases[s.DatabaseOID] = true
		}
		if s.UserOID != 0 && r.users[s.UserOID] == "" {
			users[s.UserOID] = true
		}
	}
	if len(databases)+len(users) == 0 || time.Since(r.searched) < pause {
		return
	}
	r.searched = time.Now()
	names := r.catalogNames()
	if names == nil {
		return
	}
	if len(databases) > 0 {
		maps.Copy(r.databases, names.Databases(slices.Collect(maps.Keys(databases))))
	}
	if len(users) > 0 {
		maps.Copy(r.users, names.Roles(slices.Collect(maps.Keys(users))))
	}
}
