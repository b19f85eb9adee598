package node

import (
	"context"
	"time"
)

// Limits of the proofs that run at the same time. A proof (see prove) verifies that a process is a postmaster. It reads
// the files of a data directory. If the file system hangs, the proof keeps a thread of the operating system, and
// nothing can end it. Any user can start processes that are called postgres in a directory of such a file system.
//
//   - proofSlots proofs have a slot at the same time. A proof gives its slot back when it ends, or after proofTime. So
//     proofs that hang delay other proofs for proofTime at most.
//   - A proof without a slot still has its thread. The proofs of one account are at most maxHangingOfUser, of all accounts
//     maxHanging. At its limit, an account must wait until one of its proofs ends. So a person with one account cannot
//     block the proofs of other accounts.
//   - Config.proofRate limits how often the proofs of an account may start.
const (
	proofSlots       = 16
	proofTime        = 10 * time.Second
	maxHangingOfUser = 64
	maxHanging       = 512
)

// proofs has the numbers of running proofs: of all, of those with a slot, and of each account.
type proofs struct {
	all, slots int
	ofUser     map[int]int
}

// countProofs counts the proofs that run at the time now.
func (s *supervisor) countProofs(now time.Time) proofs {
	n := proofs{ofUser: map[int]int{}}
	for _, c := range s.clusters {
		if c.phase == proving {
			n.add(c, now)
		}
	}
	return n
}

// add counts the proof of a cluster.
func (n *proofs) add(c *cluster, now time.Time) {
	n.all++
	n.ofUser[c.Account]++
	if now.Sub(c.since) < proofTime {
		n.slots++
	}
}

// proveDue starts proofs while slots are free. A process of the account with the fewest running proofs comes first;
// among these, a process without a proof so far, then the longest wait. So many processes of one user do not delay the
// others.
func (s *supervisor) proveDue(ctx context.Context, now time.Time) {
	n := s.countProofs(now)
	for n.slots < proofSlots && n.all < maxHanging {
		k, c := s.nextProof(&n, now)
		if c == nil {
			return
		}
		s.prove(ctx, k, c, now)
		n.add(c, now)
	}
}

// nextProof returns the cluster whose proof must start next; nil: no proof may start now.
func (s *supervisor) nextProof(n *proofs, now time.Time) (first key, best *cluster) {
	for k, c := range s.clusters {
		due := c.phase == unproved || c.phase == refused && !now.Before(c.next)
		if !due || n.ofUser[c.Account] >= maxHangingOfUser || best != nil && !n.before(c, best) {
			continue
		}
		if s.budget(c.Account).proofs.free(now, s.proofRate()) {
			first, best = k, c
		}
	}
	return first, best
}

// before reports whether the proof of the cluster one comes before the proof of the cluster other; see proveDue.
func (n *proofs) before(one, other *cluster) bool {
	if a, b := n.ofUser[one.Account], n.ofUser[other.Account]; a != b {
		return a < b
	}
	if a, b := one.phase == unproved, other.phase == unproved; a != b {
		return a
	}
	return one.next.Before(other.next)
}

// prove runs the proof of a cluster in a goroutine, because the file system may hang.
func (s *supervisor) prove(ctx context.Context, k key, c *cluster, now time.Time) {
	c.phase, c.since = proving, now
	s.budget(c.Account).proofs.take(now, s.proofRate())
	proc, p, proof := s.Proc, c.Process, s.proof
	go func() {
		dir, err := proof(proc, p)
		select {
		case s.events <- event{key: k, dataDir: dir, err: err}:
		case <-ctx.Done():
		}
	}()
}
