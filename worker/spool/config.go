package spool

import (
	"errors"
	"time"

	"pg_stat_backtrace/worker/admission"
)

// Sentinels; what is returned wraps one of them where a caller may want to branch.
var (
	// ErrLocked: another worker serves this data directory.
	ErrLocked = errors.New("another worker serves this data directory")
	// ErrUnsafe: a directory or file is not this user's alone.
	ErrUnsafe = errors.New("not private to this user")
	// ErrLost: the spool directory was removed, moved or cannot be written any more. A new Open makes a new one.
	ErrLost = errors.New("spool directory lost")
	// ErrBadRequest: a file in the spool is not a request of this protocol.
	ErrBadRequest = errors.New("bad request")
	// ErrFull: the file system of the spool is full.
	ErrFull = errors.New("file system full")
	// ErrNoWorker: no worker has left its pid file in the data directory.
	ErrNoWorker = errors.New("no worker")
)

// Config configures a spool. The zero value of each field but DataDir is a default.
type Config struct {
	// DataDir is the data directory of the server, as this process reaches it.
	DataDir string
	// Base is the directory to make the spool directory in. Empty: /dev/shm if that is a tmpfs with room, else
	// os.TempDir.
	Base string
	// Root stands before a path of the server's in this process's view: /proc/PID/root if the server has another root
	// directory. The spool directory is then made in there, so that the server sees it.
	Root string
	// Witness is asked again and again: the server may be started anew with another view of /proc. If the server may not
	// see this process, it names, as the server knows it, a process that runs as long as the server does, and its start
	// time in clock ticks since boot: the pid file names that process as the worker. Zero: the server sees this process.
	Witness func() (pid int, start uint64)
	// Version is the worker's version, for those who read the pid file.
	Version string
	// Verbs are what the worker can be asked, beside what every version can. The extension refuses the others itself.
	Verbs []string
	// Concurrency bounds the handlers that run at a time; 0 is 128. Here and below a quarter is for superusers alone,
	// and a role that is not a superuser gets half.
	Concurrency int
	// Pending bounds the requests that run or wait; those beyond it are answered with an error. 0 is 4096.
	Pending int
	// OnError is told of what went wrong and has no caller to be returned to: rubbish in the directory, an answer
	// that could not be written. It is called from several goroutines and must not block. Nil: nobody is told.
	OnError func(error)
}

const (
	defaultConcurrency = 128
	defaultPending     = 4096

	// unread is how long an answer waits for a reader. A call looks for it at most for its deadline and a second.
	unread = 30 * time.Second
	// housekeeping is the pause between two looks at everything that no event tells of.
	housekeeping = 2 * time.Second
	// settle is the age from which a request that is not complete will not become so.
	settle = 5 * time.Second
	// reserve is the room, in bytes, without which the spool takes no requests.
	reserve = 64 << 10
	// requestMemory bounds the requests that run or wait, in bytes of their files. In memory they are somewhat larger.
	requestMemory = 16 << 20
	// maxUnread bounds the answers that have not been fetched, in bytes. On a small file system they get a quarter.
	maxUnread = 64 << 20
)

// shares divides a bound: a quarter is for superusers alone, and half is what one other role can get.
func shares(total int64) admission.Limits {
	return admission.Limits{Total: total, Ordinary: total - total/4, Role: (total + 1) / 2}
}

// answerRoom bounds the answers that have not been fetched, on a file system of the given size. 0 is a file system
// without a size. A role has room for the largest answer.
func answerRoom(size int64) admission.Limits {
	total := int64(maxUnread)
	if size > 0 {
		total = min(total, size/4)
	}
	return admission.Limits{Total: total, Ordinary: total - total/4, Role: max(total/4, onDisk(maxAnswer))}
}

func (c Config) concurrency() int {
	if c.Concurrency > 0 {
		return c.Concurrency
	}
	return defaultConcurrency
}

func (c Config) pending() int {
	if c.Pending > 0 {
		return c.Pending
	}
	return defaultPending
}

func (c Config) report(err error) {
	if err != nil && c.OnError != nil {
		c.OnError(err)
	}
}
