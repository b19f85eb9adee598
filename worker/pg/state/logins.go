package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/locks"
)

// login has the names with which a session logged in. After a rename of the role or of the database, the session keeps them.
type login struct{ database, user string }

// names are the names of roles, or of databases, by oid.
type names struct {
	// catalog has the names in the catalog; nil: it cannot be read. A name that is not certain has several values.
	catalog map[uint32][]string
	newest  map[uint32]newestLogin
}

// newestLogin is the name of the newest login whose name was read.
type newestLogin struct {
	name    string
	started time.Time
}

func newNames() names { return names{newest: map[uint32]newestLogin{}} }

// of returns the name in the catalog or, if the catalog cannot be read, the name of the newest login. It is empty if it is not known
// or not certain.
func (n *names) of(oid uint32) string {
	login := n.newest[oid].name
	if n.catalog == nil {
		return login
	}
	switch found := n.catalog[oid]; {
	case len(found) == 1:
		return found[0]
	case slices.Contains(found, login):
		return login
	}
	return ""
}

// learn notes the name of a login.
func (n *names) learn(oid uint32, name string, started time.Time) {
	if old, ok := n.newest[oid]; oid != 0 && name != "" && (!ok || !started.Before(old.started)) {
		n.newest[oid] = newestLogin{name, started}
	}
}

// doubtful reports whether the catalog has no certain name for an oid, or a name that differs from a login's.
func (n *names) doubtful(oid uint32, login string) bool {
	found := n.catalog[oid]
	return oid != 0 && (len(found) != 1 || login != "" && found[0] != login)
}

// addNames sets the names of the sessions' databases and users. If all is set, it reads the names of all logins.
func (r *Reader) addNames(sessions []moment.Session, all bool) {
	r.readShared()
	order := make([]*moment.Session, 0, len(sessions))
	for i := range sessions {
		if s := &sessions[i]; s.Type == ClientBackend || s.Type == "walsender" {
			order = append(order, s)
		}
	}
	slices.SortFunc(order, func(a, b *moment.Session) int { return started(b).Compare(started(a)) }) // the newest first
	living := make(map[identity]login, len(order))
	databases, users := map[uint32]bool{}, map[uint32]bool{} // those whose newest login is known
	fresh := false
	for _, s := range order {
		id := identity{s.ServerPID, uint64(started(s).UnixMicro())}
		l, known := r.logins[id]
		wanted := s.DatabaseOID != 0 && !databases[s.DatabaseOID] || s.UserOID != 0 && !users[s.UserOID]
		// A login that could not be read is read again only if the names lack it.
		lacks := l.user == "" && (r.databases.of(s.DatabaseOID) == "" || r.users.of(s.UserOID) == "")
		if s.UserOID != 0 && (!known && (all || wanted) || known && wanted && lacks) {
			l, known = r.readLogin(s.PID), true
			fresh = fresh || r.users.doubtful(s.UserOID, l.user) || r.databases.doubtful(s.DatabaseOID, l.database)
		}
		if !known {
			continue
		}
		living[id] = l
		r.users.learn(s.UserOID, l.user, started(s))
		r.databases.learn(s.DatabaseOID, l.database, started(s))
		users[s.UserOID] = users[s.UserOID] || l.user != ""
		databases[s.DatabaseOID] = databases[s.DatabaseOID] || l.database != ""
	}
	r.logins = living
	if r.shared != nil && (fresh || slices.ContainsFunc(sessions, r.unnamed)) && r.shared.Search() == nil {
		r.users.catalog, r.databases.catalog = r.shared.Roles(), r.shared.Databases()
	}
	for i := range sessions {
		s := &sessions[i]
		s.Database, s.User = r.databases.of(s.DatabaseOID), r.users.of(s.UserOID)
	}
}

func started(s *moment.Session) time.Time {
	if s.Started == nil {
		return time.Time{}
	}
	return *s.Started
}

// unnamed reports whether a session's role or database has no certain name.
func (r *Reader) unnamed(s moment.Session) bool {
	return r.users.doubtful(s.UserOID, "") || r.databases.doubtful(s.DatabaseOID, "")
}

// readShared reads the names in the server's catalogs.
func (r *Reader) readShared() {
	if r.shared == nil && !r.noShared {
		r.openShared()
	}
	r.users.catalog, r.databases.catalog = nil, nil
	if r.shared != nil && r.shared.Read() == nil {
		r.users.catalog, r.databases.catalog = r.shared.Roles(), r.shared.Databases()
	}
}

func (r *Reader) openShared() {
	r.noShared = true
	c := r.server.Cluster
	region := func(string) uint64 { return 0 }
	if r.locks == nil {
		if reader, err := locks.Open(c); err == nil {
			r.locks = reader
		}
	}
	if r.locks != nil {
		region = r.locks.Region
	}
	shared, err := locks.OpenSharedNames(&r.server.Program, c.Version, c.PostmasterPID, c.DataDir, region)
	if err == nil {
		r.shared, r.noShared = shared, false
	}
}

// readLogin reads the names with which a backend logged in, from the structure of its connection (Port). Names that cannot be read
// are empty.
func (r *Reader) readLogin(pid int) (l login) {
	if port := r.childPointer(pid, r.port); port != 0 {
		l.database = r.childText(pid, port+uint64(r.offsets.databaseName))
		l.user = r.childText(pid, port+uint64(r.offsets.userName))
	}
	return l
}

// childText reads a name by its pointer at an address in a process; empty: it cannot be read.
func (r *Reader) childText(pid int, at uint64) string {
	pointer, err := r.childWord(pid, at)
	if err != nil || pointer == 0 {
		return ""
	}
	var name [maxName]byte
	n, _ := r.child(pid, pointer, name[:]) // a name may end before an unmapped page
	if t, cut := text(name[:n]); n > 0 && (!cut || slices.Contains(name[:n], 0)) {
		return t
	}
	return ""
}

// RolesNamed returns the oids of the roles that have one of the names, or may have it, or of which a session logged in with it. It
// uses the names of the last Read, which must have had the options Texts and Logins.
func (r *Reader) RolesNamed(m *moment.Moment, wanted []string) []uint32 {
	found := make(map[uint32]bool)
	for oid, names := range r.users.catalog {
		if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(wanted, name) }) {
			found[oid] = true
		}
	}
	for oid, login := range r.users.newest {
		if slices.Contains(wanted, login.name) {
			found[oid] = true
		}
	}
	for i := range m.Sessions {
		s := &m.Sessions[i]
		if l, ok := r.logins[identity{s.ServerPID, uint64(started(s).UnixMicro())}]; ok && slices.Contains(wanted, l.user) {
			found[s.UserOID] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), cmp.Compare)
}

// CurrentNames reads the server's processes and returns the names of its databases and users by oid. A name that is not certain is
// missing.
func (r *Reader) CurrentNames() (databases, users map[uint32]string, err error) {
	if _, err := r.Read(Options{Texts: true}); err != nil {
		return nil, nil, err
	}
	return r.databases.all(), r.users.all(), nil
}

func (n *names) all() map[uint32]string {
	known := make(map[uint32]string, len(n.newest))
	for oid := range n.catalog {
		known[oid] = n.of(oid)
	}
	for oid := range n.newest {
		known[oid] = n.of(oid)
	}
	maps.DeleteFunc(known, func(_ uint32, name string) bool { return name == "" })
	return known
}
