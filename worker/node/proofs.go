package node

import (
	"context"
	"time"

	"pg_stat_backtrace/ptrace/procfs"
)

// Limits of the proofs that run at the same time. A proof that waits for a file system keeps a thread of the operating
// system, and nothing can end it. Any user can start processes that are called postgres, in a directory of a file
// system that hangs.
//
//   - proofSlots proofs run at the same time. After proofTime the slot of a proof is free again, so that proofs that
//     hang delay others by that time at most.
//   - A user id has at most maxHangingOfUser proofs, and all users have at most maxHanging, however long they take.
//     This bounds the threads. At its limit, other processes of that user wait until a proof ends. A person with one
//     user id cannot block the proofs of other users. A person with many, such as the owner of a user namespace, can.
//     Workers that run are unaffected.
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
	n.ofUser[c.owner]++
	if now.Sub(c.since) < proofTime {
		n.slots++
	}
}

// proveDue starts proofs while there are slots. The user with the fewest proofs comes first, then the process that
// waits longest: many processes of one user do not delay the others.
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
		if !due || n.ofUser[c.owner] >= maxHangingOfUser {
			continue
		}
		if best == nil || n.ofUser[c.owner] < n.ofUser[best.owner] ||
			n.ofUser[c.owner] == n.ofUser[best.owner] && c.next.Before(best.next) {
			first, best = k, c
		}
	}
	return first, best
}

// prove looks at the files of a cluster, in a goroutine: a file system may hang.
func (s *supervisor) prove(ctx context.Context, k key, c *cluster, now time.Time) {
	c.phase, c.since = proving, now
	proc, p, proof := s.Proc, c.Process, s.proof
	go func() {
		dir, err := proof(proc, p)
		select {
		case s.events <- event{key: k, dataDir: dir, err: err}:
		case <-ctx.Done():
		}
	}()
}

// ownerOf returns the effective user id of a process, or -1.
func ownerOf(pid int) int {
	status, err := procfs.ReadStatus(pid)
	if err != nil {
		return -1
	}
	return status.UID[1]
}
