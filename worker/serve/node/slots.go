package node

import (
	"cmp"
	"slices"
	"time"
)

// slot describes the server whose worker had a slot (see Config.Command) last: its process, its user id and its data directory.
// The path of a directory is not unique, because each container has its own paths, and any user can imitate a path in a mount
// namespace. So a slot is kept for a path together with a user id.
type slot struct {
	name  string
	owner int
	by    key
	last  time.Time // time of the start or the end of its last worker
}

// settle reports whether workers may start. After the start of the supervisor, they wait until the proofs of all processes of
// the first look with the name of a server have ended, but at most proofTime. So the slots follow the order of the data
// directories, not the order in which proofs end.
func (s *supervisor) settle(now time.Time) bool {
	if s.settled {
		return true
	}
	if now.Before(s.settleBy) {
		for _, c := range s.clusters {
			if (c.phase == unproved || c.phase == proving) && !c.Unnamed {
				return false
			}
		}
	}
	s.settled = true
	return true
}

// sortByName sorts clusters in the order of their data directories.
func (s *supervisor) sortByName(keys []key) {
	slices.SortFunc(keys, func(a, b key) int {
		one, two := s.clusters[a], s.clusters[b]
		return cmp.Or(cmp.Compare(one.name, two.name), cmp.Compare(one.UID, two.UID), cmp.Compare(a.pid, b.pid),
			cmp.Compare(a.start, b.start))
	})
}

// The preference of a cluster for a slot that no worker has now; a lower number is better.
const (
	ofProcess   = iota // its last worker served the same process
	ofDirectory        // its last worker served a process of the same data directory and user that has ended
	unused
	ofEnded   // its last worker served a process that has ended
	ofAnother // its last worker served a process that will get a worker again
)

// takeSlot returns the slot for a worker that is about to start. Slots are below Max. If all slots were used before, the slot
// with the best preference is used again; among equal slots, the one with the oldest last use. The caller must ensure that
// fewer than Max workers run.
func (s *supervisor) takeSlot(k key, c *cluster, now time.Time) int {
	taken := map[int]bool{}
	for _, other := range s.clusters {
		if other.phase == running || other.phase == stopping {
			taken[other.slot] = true
		}
	}
	best, preference := len(s.slots), unused
	if len(s.slots) >= s.Max {
		preference = ofAnother + 1 // there is no unused slot
	}
	for i := range s.slots {
		if taken[i] {
			continue
		}
		p := s.preference(&s.slots[i], k, c)
		if p < preference || p == preference && s.slots[i].last.Before(s.slots[best].last) {
			best, preference = i, p
		}
	}
	if best == len(s.slots) {
		s.slots = append(s.slots, slot{})
	}
	s.slots[best] = slot{name: c.name, owner: c.UID, by: k, last: now}
	return best
}

// preference returns the preference of the cluster c, with the key k, for a slot. The parameter last describes the last
// use of the slot.
func (s *supervisor) preference(last *slot, k key, c *cluster) int {
	user, there := s.clusters[last.by]
	switch {
	case last.by == k:
		return ofProcess
	case there && !user.gone:
		return ofAnother
	case last.name == c.name && last.owner == c.UID:
		return ofDirectory
	}
	return ofEnded
}
