package node

import (
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The work for a process is charged to an account, which is a user id. Usually, the account is the effective user of the
// process. In a user namespace, the owner of the namespace can use many user ids (/etc/subuid). So for a process in a user
// namespace, the account is the user that created the namespace. But if root created the namespace, as container engines do
// for the containers of many persons, the account is the effective user.
//
// The accounts share the workers, the proofs (see proofs.go) and the lines of the log, so that a person with one account
// cannot use up the shares of the others.

// maxDepth is one more than the deepest nesting of user namespaces that the kernel allows (32).
const maxDepth = 33

// accountOf returns the account of a process whose effective user is uid.
func accountOf(pid, uid int) int {
	own, err := namespaceID(unix.AT_FDCWD, "/proc/self/ns/user")
	if err != nil {
		return uid
	}
	fd, err := unix.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns/user"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return uid
	}
	defer func() { _ = unix.Close(fd) }()
	if its, err := namespaceID(fd, ""); err != nil || its == own {
		return uid
	}
	for range maxDepth {
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		if err != nil {
			return uid
		}
		id, err := namespaceID(parent, "")
		if err == nil && id == own {
			_ = unix.Close(parent)
			break
		}
		_ = unix.Close(fd)
		fd = parent
	}
	owner, err := unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
	if err != nil || owner == 0 {
		return uid
	}
	return int(owner)
}

// namespaceID returns the inode number of a namespace. If path is empty, fd is the namespace's open file.
func namespaceID(fd int, path string) (uint64, error) {
	var stat unix.Stat_t
	var err error
	if path != "" {
		err = unix.Stat(path, &stat)
	} else {
		err = unix.Fstat(fd, &stat)
	}
	return stat.Ino, err
}

// bucket limits the number of events by a rate: atOnce events without a pause, and then perSecond events a second.
type bucket struct {
	used float64 // events of atOnce that are used up
	last time.Time
}

// rate is the limit of a bucket.
type rate struct{ atOnce, perSecond float64 }

// free reports whether the rate allows one more event now. It does not count an event.
func (b *bucket) free(now time.Time, r rate) bool {
	b.used = max(0, b.used-now.Sub(b.last).Seconds()*r.perSecond)
	b.last = now
	return b.used+1 <= r.atOnce
}

// take reports whether the rate allows one more event, and counts the event if so.
func (b *bucket) take(now time.Time, r rate) bool {
	if !b.free(now, r) {
		return false
	}
	b.used++
	return true
}

// budget says how much of its three rates an account has used: for proofs, for starts of workers, and for lines of the log.
type budget struct{ proofs, starts, lines bucket }

// The rates of one account. A reboot, or an upgrade that restarts all servers, needs fewer than atOnce. By starting and
// ending processes all the time, a user causes at most two proofs a second, and a start of a worker every two seconds.
func (c Config) proofRate() rate { return rate{float64(256 + 4*c.Max), 2} }
func (c Config) startRate() rate { return rate{float64(2 * max(c.Max, 8)), 0.5} }

// lineRate is the rate of lines about the processes of one account.
var lineRate = rate{linesAtOnce / 2, linesPerSecond / 2}

// maxBudgets is the number of budgets from which on the supervisor removes the budgets of accounts that have no process.
const maxBudgets = 256

// budget returns the budget of an account, which it creates if there is none.
func (s *supervisor) budget(account int) *budget {
	if b := s.budgets[account]; b != nil {
		return b
	}
	if len(s.budgets) >= maxBudgets {
		s.forgetBudgets()
	}
	b := &budget{}
	s.budgets[account] = b
	return b
}

// forgetBudgets removes the budgets of accounts that have no process. Later, such an account starts with an unused
// budget.
func (s *supervisor) forgetBudgets() {
	present := map[int]bool{}
	for _, c := range s.clusters {
		present[c.Account] = true
	}
	for account := range s.budgets {
		if !present[account] {
			delete(s.budgets, account)
		}
	}
}
