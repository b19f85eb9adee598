package recorder

import (
	"slices"
	"sync"
)

// RedactedRoles are the roles that have or had a name in Options.Redact. They stay redacted after a rename. The zero value has
// none. It may be used by several goroutines at a time.
type RedactedRoles struct {
	mu   sync.Mutex
	oids map[uint32]bool
}

func (r *RedactedRoles) add(oids []uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.oids == nil {
		r.oids = make(map[uint32]bool, len(oids))
	}
	for _, oid := range oids {
		r.oids[oid] = true
	}
}

func (r *RedactedRoles) has(oid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.oids[oid]
}

// redacts reports whether the query texts of a role are not kept: it has or had a name in Options.Redact, or its name is not
// known, so that it may have such a name.
func (r *Recorder) redacts(oid uint32, name string) bool {
	if len(r.o.Redact) == 0 || oid == 0 {
		return false
	}
	return name == "" || slices.Contains(r.o.Redact, name) || r.o.Redacted.has(oid)
}
