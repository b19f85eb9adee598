package node

import (
	"context"
	"time"
)

// Limits of the proofs that run at the same time. A proof that waits for a file system keeps a thread of the operating
// system, and nothing can end it. Any user can start processes that are called postgres, in a directory of a file
// system that hangs.
//
//   - proofSlots proofs run at the same time. After proofTime the slot of a proof is free again, so that proofs that
//     hang delay others by that time at most.
//   - An account has at most maxHangingOfUser proofs, and all accounts have at most maxHanging, however long they take.
//     This bounds the threads. At its limit, other processes of that account wait until a proof ends. A person with one
//     account cannot block the proofs of other users.
//   - Config.proofRate bounds the proofs of an account that end.
const (
	proofSlots       = 16
	proofTime        = 10 * time.Second
	maxHangingOfUser = 64
	maxHanging       = 512
)

// proofs counts the proofs that run.
type proofs struct {
	all, slots int
	ofUser     map[int]int
}

// countProofs returns the proofs that run now.
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

// proveDue starts proofs while there are slots. The account with the fewest proofs comes first, then a process that was
// not looked at yet, then the longest wait: many processes of one user do not delay the others.
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

// nextProof returns the cluster to look at next; nil if no cluster may be looked at now.
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

// before reports whether one cluster is to be looked at before another.
func (n *proofs) before(one, other *cluster) bool {
	if a, b := n.ofUser[one.Account], n.ofUser[other.Account]; a != b {
		return a < b
	}
	if a, b := one.phase == unproved, other.phase == unproved; a != b {
		return a
	}
	return one.next.Before(other.next)
}

// prove looks at the files of a cluster, in a goroutine: a file system may hang.
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
